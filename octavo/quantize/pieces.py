"""Calibration text in pieces: what one update of a training sees."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.models.decoder import DecoderLayer, decoder_layer
from octavo.ops.reference.batch import Batch, whole_prompts
from octavo.quantize.bulk_ops import BulkOps

#: Tokens one update sees, unless a sequence alone is longer.
STEP_TOKENS = 1024
#: Tokens of text that is never trained on but decides what is kept and when to stop: this share, at most so many.
_HELD_OUT_SHARE, MOST_HELD_OUT_TOKENS = 1 / 8, 4096


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive whole sequences: `rows` of all tokens, and the batch they are by themselves."""

    rows: slice
    batch: Batch

    @property
    def num_tokens(self) -> int:
        return self.batch.num_rows


def cut(batch: Batch, num_tokens: int = STEP_TOKENS) -> list[Piece]:
    """All sequences of `batch` in pieces of at most `num_tokens`, or of one longer sequence."""
    pieces: list[Piece] = []
    lengths: list[int] = []
    first = 0
    for length in [*(span.num_rows for span in batch.spans), None]:
        if lengths and (length is None or sum(lengths) + length > num_tokens):
            rows = slice(first, first + sum(lengths))
            pieces.append(Piece(rows, whole_prompts([each.tolist() for each in batch.tokens[rows].split(lengths)])))
            first, lengths = rows.stop, []
        if length is not None:
            lengths.append(length)
    return pieces


def counted(pieces: list[Piece], mask: Tensor | None) -> list[Piece]:
    """Those with a row that `mask` bool `[tokens]` counts; None counts all."""
    return pieces if mask is None else [piece for piece in pieces if bool(mask[piece.rows].any())]


def hold_out(pieces: list[Piece]) -> tuple[list[Piece], list[Piece]]:
    """(pieces to train on, pieces held out), the latter evenly spaced; a single piece serves as both."""
    if len(pieces) == 1:
        return pieces, pieces
    largest = max(piece.num_tokens for piece in pieces)
    count = min(int(len(pieces) * _HELD_OUT_SHARE), MOST_HELD_OUT_TOKENS // largest)
    every = len(pieces) // max(1, count)
    held_out = {index * every + every // 2 for index in range(max(1, count))}
    return (
        [piece for index, piece in enumerate(pieces) if index not in held_out],
        [piece for index, piece in enumerate(pieces) if index in held_out],
    )


def block_outputs(layer: DecoderLayer, x: Tensor, pieces: list[Piece]) -> Tensor:
    """What `layer` makes of all rows of `x` `[tokens, hidden]`, piece by piece."""
    with torch.no_grad():
        return torch.cat([decoder_layer(BulkOps(), layer, x[piece.rows], piece.batch) for piece in pieces])


def shuffled(pieces: list[Piece], seed: int) -> Iterator[Piece]:
    """Endless: every piece once in a new order, then again. `seed` alone decides."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        for index in torch.randperm(len(pieces), generator=generator).tolist():
            yield pieces[index]
