"""How fast one checkpoint answers one reader: time to first token, tokens a second after it, memory."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from octavo.core.errors import InvalidField
from octavo.core.units import format_bytes
from octavo.engine import LLM
from octavo.engine.process_memory import peak_resident_bytes
from octavo.measure.bench.offline import Batch, facts, prompt_source, run_batch
from octavo.models.load import open_model_checkpoint
from octavo.models.registry import read_spec


@dataclass(frozen=True, slots=True)
class SpeedPlan:
    """One prompt of `prompt_tokens`, continued by `new_tokens`; `num_rounds` times within `limit_seconds`, but at least
    once. A model of a shorter context gets what fits."""

    prompt_tokens: int = 128
    new_tokens: int = 64
    num_rounds: int = 3
    limit_seconds: float = 60.0

    def __post_init__(self) -> None:
        if self.num_rounds < 1:
            raise InvalidField("rounds", self.num_rounds, "at least one; leave speed out with --no-speed")


@dataclass(frozen=True, slots=True)
class Speed:
    """Medians over rounds. `peak_rss_bytes` is the whole process that loaded and ran the checkpoint, and nothing else:
    interpreter, weights, cache for one sequence."""

    prompt_tokens: int
    new_tokens: int
    num_rounds: int
    ttft_seconds: float
    decode_tokens_per_second: float
    peak_rss_bytes: int
    executor: str
    kv_dtype: str
    threads: int | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def protocol(self) -> str:
        threads = "one thread a core" if self.threads is None else f"{self.threads} threads"
        return (
            f"one request of {self.prompt_tokens} tokens, {self.new_tokens} new ones, median of {self.num_rounds} "
            f"interleaved rounds, {self.executor}, {self.kv_dtype} keys and values, {threads}; memory is the peak of "
            "a process that does only this"
        )

    def __str__(self) -> str:
        return (
            f"{self.decode_tokens_per_second:.1f} tokens/s, first token after {1e3 * self.ttft_seconds:.0f} ms, "
            f"{format_bytes(self.peak_rss_bytes)} at most"
        )


@dataclass(frozen=True, slots=True)
class SpeedRound:
    ttft_seconds: float
    decode_tokens_per_second: float
    seconds: float

    @classmethod
    def of(cls, batch: Batch) -> SpeedRound:
        return cls(batch.ttft_seconds[0], 1.0 / batch.tpot_seconds[0], batch.seconds)


class SpeedMeter:
    """A loaded checkpoint, run a round at a time. Raises `ExecutorUnavailable` where the native executor cannot
    compute it: the reference's speed says nothing about the format."""

    def __init__(self, model: str, plan: SpeedPlan, threads: int | None = None) -> None:
        context = read_spec(open_model_checkpoint(model).config).max_position_embeddings
        room = min(context, plan.prompt_tokens + plan.new_tokens)
        self._llm = LLM(model, executor="native", max_num_seqs=1, max_model_len=room, threads=threads)
        self._new_tokens = max(2, min(plan.new_tokens, room // 3))
        self._prompt_tokens = max(1, min(plan.prompt_tokens, room - self._new_tokens))
        self._prompts = prompt_source(self._llm, seed=0)
        self._rounds: list[SpeedRound] = []
        self._run(2)  # unseen: pages are touched, tables grown

    def round(self) -> SpeedRound:
        measured = SpeedRound.of(self._run(self._new_tokens))
        self._rounds.append(measured)
        return measured

    def result(self) -> Speed:
        """Of the rounds so far; at least one."""
        known = facts(self._llm)
        return Speed(
            self._prompt_tokens,
            self._new_tokens,
            len(self._rounds),
            _median([each.ttft_seconds for each in self._rounds]),
            _median([each.decode_tokens_per_second for each in self._rounds]),
            peak_resident_bytes(),
            known["executor"],
            known["kv_dtype"],
            known["threads"],
        )

    def _run(self, new_tokens: int) -> Batch:
        return run_batch(self._llm, self._prompts.distinct(1, self._prompt_tokens), new_tokens)


def _median(values: Sequence[float]) -> float:
    return float(statistics.median(values))
