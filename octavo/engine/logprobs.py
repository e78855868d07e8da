"""Log-probabilities of raw logits: before bias, penalties and temperature, as OpenAI and vLLM report them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from octavo.core.outputs import Logprob, PositionLogprobs
from octavo.engine.truncation import most_likely

#: Rows turned to log-probabilities at a time: bounds the scratch memory of a long scored prompt.
ROWS_AT_ONCE = 32
#: What stands for minus infinity: it never leaves the engine (JSON has no word for it).
LOWEST_LOGPROB = -9999.0

#: token id -> (text, exact bytes)
Spell = Callable[[int], tuple[str, bytes]]


def position_logprobs(
    logits: Tensor, chosen: Sequence[int], counts: Sequence[int], spell: Spell
) -> list[PositionLogprobs]:
    """For each row of `logits` `[rows, vocabulary]`: the chosen token, then the `counts[row]` most likely ones.

    Ranks count from 1 and break ties by lowest token id, so the greedy token always has rank 1.
    """
    found: list[PositionLogprobs] = []
    for start in range(0, len(chosen), ROWS_AT_ONCE):
        rows = torch.log_softmax(logits[start : start + ROWS_AT_ONCE], dim=-1)
        for offset, row in enumerate(rows):
            found.append(_one_position(row, chosen[start + offset], counts[start + offset], spell))
    return found


def _one_position(logprobs: Tensor, chosen: int, count: int, spell: Spell) -> PositionLogprobs:
    value = logprobs[chosen]
    rank = 1 + int((logprobs > value).count_nonzero()) + int((logprobs[:chosen] == value).count_nonzero())
    position = {chosen: _logprob(float(value), rank, chosen, spell)}
    if count:
        ids = most_likely(logprobs, min(count, logprobs.numel()))
        best_first = logprobs[ids].sort(descending=True, stable=True)
        values, order = best_first.values.tolist(), best_first.indices.tolist()
        for place, (top_value, index) in enumerate(zip(values, order, strict=True), start=1):
            token = int(ids[index])
            position.setdefault(token, _logprob(top_value, place, token, spell))
    return position


def _logprob(value: float, rank: int, token: int, spell: Spell) -> Logprob:
    text, exact = spell(token)
    return Logprob(max(value, LOWEST_LOGPROB), rank, text, exact)
