"""cos and sin of every position that a program has seen, grown as sequences grow."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from octavo.ops.base import Rope
from octavo.ops.reference.batch import make_rotation

#: Positions computed at a time, cut at multiples of it: a position's numbers never depend on when they were made.
POSITIONS_PER_PIECE = 1024


class RopeTables:
    """The rotations of a model, in the order in which they are first asked for, and how far they have been computed."""

    def __init__(self) -> None:
        self.ropes: list[Rope] = []
        self.num_positions = 0

    def id_of(self, rope: Rope) -> int:
        """A rotation is known by its object: a model makes each once."""
        for index, known in enumerate(self.ropes):
            if known is rope:
                return index
        self.ropes.append(rope)
        return len(self.ropes) - 1

    def grow(self, num_positions: int) -> bool:
        """Cover positions `[0, num_positions)` and some more; whether tables must be computed anew."""
        if num_positions <= self.num_positions or not self.ropes:
            return False
        self.num_positions = -(-num_positions // POSITIONS_PER_PIECE) * POSITIONS_PER_PIECE
        return True

    def table(self, index: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """cos and sin float32 `[num_positions, rotary_dim / 2]`."""
        rope = self.ropes[index]
        shape = (self.num_positions, len(rope.inverse_frequencies))
        cos, sin = np.empty(shape, np.float32), np.empty(shape, np.float32)
        for first in range(0, self.num_positions, POSITIONS_PER_PIECE):
            piece = slice(first, first + POSITIONS_PER_PIECE)
            rotation = make_rotation(rope, torch.arange(first, first + POSITIONS_PER_PIECE))
            cos[piece], sin[piece] = (each.squeeze(1).numpy() for each in rotation)
        return cos, sin


def rope_bytes(ropes: list[Rope], num_positions: int) -> int:
    """Bytes of all tables while they are computed anew: the program's and those that it copies."""
    covered = -(-num_positions // POSITIONS_PER_PIECE) * POSITIONS_PER_PIECE
    return sum(2 * 2 * 4 * covered * len(rope.inverse_frequencies) for rope in ropes)
