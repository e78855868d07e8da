"""The sampler: rows of logits -> token ids.

Order, as in vLLM: logit bias, min_tokens, penalties, temperature, min-p / top-k / top-p, draw. Greedy takes the highest
logit; of tied ones the lowest token id, which is also what top-k keeps. Each row is computed by itself, so that its
result never depends on the rows beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from octavo.core.errors import OctavoError
from octavo.core.sampling_params import SamplingParams
from octavo.engine.penalties import TokenCounts, has_penalties
from octavo.engine.randomness import uniform
from octavo.engine.truncation import truncate

_SMALLEST_TEMPERATURE = float(torch.finfo(torch.float32).tiny)


class NonFiniteLogits(OctavoError):
    """The model answered with NaN or infinity; no token can be chosen from that."""


@dataclass(slots=True)
class SamplingState:
    """What the sampler knows of one sequence. `banned_ids` are the ids that would end it, for min_tokens."""

    params: SamplingParams
    seed: int
    sequence_index: int
    prompt_token_ids: list[int]
    banned_ids: list[int] = field(default_factory=list)
    num_output_tokens: int = 0
    counts: TokenCounts | None = field(init=False, default=None)
    _bias: tuple[Tensor, Tensor] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if has_penalties(self.params):
            self.counts = TokenCounts(self.prompt_token_ids)
        if self.params.logit_bias:
            ids = torch.tensor(list(self.params.logit_bias), dtype=torch.int64)
            self._bias = ids, torch.tensor(list(self.params.logit_bias.values()), dtype=torch.float32)

    @property
    def plain(self) -> bool:
        """True when nothing changes the logits before they are compared."""
        return self._bias is None and self.counts is None and not self._bans_end

    @property
    def _bans_end(self) -> bool:
        return self.num_output_tokens < self.params.min_tokens and bool(self.banned_ids)

    def append(self, token_id: int) -> None:
        """The sequence has grown by this token."""
        self.num_output_tokens += 1
        if self.counts is not None:
            self.counts.add(token_id)

    def adjust(self, logits: Tensor) -> Tensor:
        """Bias, min_tokens and penalties: a changed copy of `logits` `[vocabulary]`, or the same if nothing applies."""
        if self.plain:
            return logits
        logits = logits.clone()
        if self._bias is not None:
            logits.index_add_(0, *self._bias)
        if self._bans_end:
            logits[self.banned_ids] = -math.inf
        if self.counts is not None:
            self.counts.penalize(logits, self.params)
        return logits


def sample(rows: Sequence[Tensor] | Tensor, states: Sequence[SamplingState]) -> list[int | NonFiniteLogits]:
    """One token id for each row of logits, float32 `[vocabulary]`; the rows are not changed.

    A row that cannot be sampled yields the error itself, so that it ends one request and not the step.
    """
    return [_sample_row(row, state) for row, state in zip(rows, states, strict=True)]


def _sample_row(row: Tensor, state: SamplingState) -> int | NonFiniteLogits:
    logits = state.adjust(row)
    array = logits.numpy()
    highest_id = int(array.argmax())  # the first of equals; NaN counts as highest
    highest = float(array[highest_id])
    if not math.isfinite(highest):
        return NonFiniteLogits(f"the model's logits are not finite: {highest} for token {highest_id}")
    if state.params.greedy or state.params.top_k == 1:
        return highest_id
    return _draw(logits, highest, state)


def _draw(logits: Tensor, highest: float, state: SamplingState) -> int:
    """Inverse of the cumulative distribution in ascending token id order.

    A temperature below the smallest normal float32 gives the distribution of that one: any gap between two logits
    divided by it is far outside the range of exp.
    """
    temperature = max(state.params.temperature, _SMALLEST_TEMPERATURE)
    probabilities = torch.softmax((logits - highest) / temperature, dim=-1)
    ids, probabilities = truncate(probabilities, state.params)
    cumulative = probabilities.cumsum(0, dtype=torch.float64)
    point = uniform(state.seed, state.sequence_index, state.num_output_tokens) * float(cumulative[-1])
    place = int(torch.searchsorted(cumulative, point, right=True))
    if place == cumulative.numel():  # the product rounded up to the whole mass: the last token that has any
        place = int(probabilities.nonzero()[-1])
    return place if ids is None else int(ids[place])
