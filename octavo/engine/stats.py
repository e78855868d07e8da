"""Counters of the engine: what the metrics page and the log show."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from octavo.core.request import FinishReason


@dataclass(slots=True)
class EngineStats:
    """A snapshot. Counters never fall; `num_running`, `num_waiting` and the blocks are of this moment.

    `num_prefix_queried_tokens` are prompt tokens looked up in the prefix cache, `num_prefix_hit_tokens` those found.
    """

    num_running: int = 0
    num_waiting: int = 0
    num_blocks: int = 0
    num_used_blocks: int = 0
    num_cached_blocks: int = 0
    num_steps: int = 0
    num_preemptions: int = 0
    num_prompt_tokens: int = 0
    num_generation_tokens: int = 0
    num_prefix_queried_tokens: int = 0
    num_prefix_hit_tokens: int = 0
    num_failed_steps: int = 0
    num_integrity_errors: int = 0
    finish_reasons: Counter[FinishReason] = field(default_factory=Counter)

    @property
    def kv_use(self) -> float:
        """Share of the blocks that running sequences hold, 0..1; cached blocks are free to take and do not count."""
        return self.num_used_blocks / self.num_blocks if self.num_blocks else 0.0
