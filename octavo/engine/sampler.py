"""The sampler: rows of logits -> token ids. The arithmetic is native (`octavo.ops.native.sampling`)."""

from __future__ import annotations

import secrets

from octavo.core.errors import OctavoError
from octavo.ops.native.sampling import NON_FINITE, Logits, SequenceSampler, sample_rows


class NonFiniteLogits(OctavoError):
    """The model answered with NaN or infinity; no token can be chosen from that."""


def draw_seed() -> int:
    """A fresh seed from the operating system, for a request that named none."""
    return secrets.randbits(63)


def sample(logits: Logits, rows: list[int], samplers: list[SequenceSampler]) -> list[int | NonFiniteLogits]:
    """One token id for each of `rows` of `logits` float32 `[rows, vocabulary]`, which are not changed.

    A row that cannot be sampled yields the error itself, so that it ends one request and not the step.
    """
    tokens: list[int | NonFiniteLogits] = list(sample_rows(logits, rows, samplers))
    if NON_FINITE in tokens:
        for place, token in enumerate(tokens):
            if token == NON_FINITE:
                tokens[place] = non_finite(logits, rows[place])
    return tokens


def non_finite(logits: Logits, row: int) -> NonFiniteLogits:
    """The error for a row of logits that cannot be used."""
    highest_id = int(logits[row].argmax())  # NaN counts as highest
    return NonFiniteLogits(f"the model's logits are not finite: {logits[row, highest_id]} for token {highest_id}")
