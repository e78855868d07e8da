"""Stop conditions: when a sequence has said enough."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.core.request import FinishReason
from octavo.core.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class Finish:
    """Why a sequence ended. `stop_reason` as in vLLM: the stop string or stop token id, None for the model's own
    end-of-sequence token. `by_token`: the last token ended it and is not part of the text."""

    reason: FinishReason
    stop_reason: int | str | None = None
    by_token: bool = False


@dataclass(frozen=True, slots=True)
class StopRules:
    """The rules of one request over token ids and counts; stop strings are `text.StopChecker`'s.

    `max_output_tokens` already respects the engine's `max_model_len`.
    """

    eos_ids: frozenset[int]
    stop_token_ids: frozenset[int]
    max_output_tokens: int

    @classmethod
    def of(cls, params: SamplingParams, eos_ids: tuple[int, ...], max_output_tokens: int) -> StopRules:
        ends = frozenset() if params.ignore_eos else frozenset(eos_ids)
        return cls(ends, frozenset(params.stop_token_ids or ()), max_output_tokens)

    @property
    def ending_ids(self) -> list[int]:
        """Every token id that ends a sequence: what `min_tokens` forbids."""
        return sorted(self.eos_ids | self.stop_token_ids)

    def after_token(self, token_id: int) -> Finish | None:
        if token_id in self.stop_token_ids:
            return Finish(FinishReason.STOP, token_id, by_token=True)
        if token_id in self.eos_ids:
            return Finish(FinishReason.STOP, by_token=True)
        return None
