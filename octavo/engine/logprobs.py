"""Log-probabilities of raw logits: before bias, penalties and temperature, as OpenAI and vLLM report them."""

from __future__ import annotations

from collections.abc import Callable

from octavo.core.outputs import Logprob, PositionLogprobs
from octavo.engine.sampler import non_finite
from octavo.ops.native.sampling import Logits, TokenLogprob, row_logprobs

#: What stands for minus infinity: it never leaves the engine (JSON has no word for it).
LOWEST_LOGPROB = -9999.0

#: token id -> (text, exact bytes)
Spell = Callable[[int], tuple[str, bytes]]


def position_logprobs(
    logits: Logits, rows: list[int], chosen: list[int], counts: list[int], spell: Spell
) -> list[PositionLogprobs]:
    """For each of `rows` of `logits` `[rows, vocabulary]`: the chosen token, then the `counts[i]` most likely ones.

    Ranks count from 1 and break ties by lowest token id, so the greedy token always has rank 1. Raises
    `NonFiniteLogits` for a row with NaN or an infinite highest logit.
    """
    found = row_logprobs(logits, rows, chosen, counts)
    for row, entries in zip(rows, found, strict=True):
        if not entries:
            raise non_finite(logits, row)
    return [_one_position(entries, spell) for entries in found]


def _one_position(entries: list[TokenLogprob], spell: Spell) -> PositionLogprobs:
    position: PositionLogprobs = {}
    for token, logprob, rank in entries:
        if token not in position:
            text, exact = spell(token)
            position[token] = Logprob(max(logprob, LOWEST_LOGPROB), rank, text, exact)
    return position
