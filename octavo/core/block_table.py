"""Which block holds which positions of a sequence, in a form that a reader can follow without rereading it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

_epochs = itertools.count(1)


class BlockTable:
    """`blocks[position // block_size]` is the block that holds `position`.

    `epoch` names the history of a table: it is drawn anew, never to return in this process, whenever anything but an
    append happens. So a reader that keeps its own copy of `n` entries under an epoch need only append
    `blocks[n : len(table)]` while the epoch stays the same, and has to read everything again when it does not.
    """

    __slots__ = ("blocks", "epoch")

    def __init__(self, blocks: Iterable[int] = ()) -> None:
        self.blocks = list(blocks)
        self.epoch = next(_epochs)

    def extend(self, blocks: Iterable[int]) -> None:
        """Append blocks; the epoch stays."""
        self.blocks.extend(blocks)

    def replace(self, index: int, block: int) -> None:
        """Put another block in the place `index`: a new epoch begins."""
        self.blocks[index] = block
        self.epoch = next(_epochs)

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, index: int) -> int:
        return self.blocks[index]

    def __iter__(self) -> Iterator[int]:
        return iter(self.blocks)

    def __repr__(self) -> str:
        return f"BlockTable({self.blocks}, epoch={self.epoch})"
