"""Packing documents into windows: every token in exactly one segment, cuts where the text allows them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

#: A text's piece shorter than this starts a new window instead of filling the rest of one.
MIN_SEGMENT_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens that should not be cut: a text, or a turn of a chat. `counts`: whether statistics count them, or the
    model only reads them (what the user of a chat says)."""

    tokens: list[int]
    counts: bool = True


#: One piece for a text, one per turn for a chat.
Document: TypeAlias = list[Piece]


@dataclass(slots=True)
class Segment:
    """A sequence of its own within a window. `counts` says of each token whether statistics count it."""

    tokens: list[int] = field(default_factory=list)
    counts: list[bool] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, tokens: Sequence[int], counts: bool) -> None:
        self.tokens += tokens
        self.counts += [counts] * len(tokens)


Window: TypeAlias = list[Segment]


def pack(documents: Iterable[Document], bos: list[int], length: int) -> tuple[list[Window], int]:
    """(windows of at most `length` tokens, number of turns that had to be cut). Each segment begins with `bos`."""
    packer = _Packer(bos, length)
    for document in documents:
        packer.start_segment()
        for piece in document:
            packer.add(piece, splittable=len(document) == 1)
    return packer.finish(), packer.num_split


def spread(windows: list[Window], count: int) -> list[Window]:
    """`count` windows at even distances, all of them if there are not more."""
    if len(windows) <= count:
        return windows
    return [windows[index * len(windows) // count] for index in range(count)]


def share_out(count: int, weights: Sequence[float]) -> list[int]:
    """`count` windows in proportion to `weights`: whole numbers, by largest remainder (the first of equals)."""
    exact = [count * weight / sum(weights) for weight in weights]
    shares = [int(share) for share in exact]
    by_remainder = sorted(range(len(weights)), key=lambda index: shares[index] - exact[index])
    for index in by_remainder[: count - sum(shares)]:
        shares[index] += 1
    return shares


def interleave(sources: Sequence[list[Window]]) -> list[Window]:
    """All windows in one order in which every stretch holds each source in about its share."""
    placed = [
        ((index + 0.5) / len(windows), number, window)
        for number, windows in enumerate(sources)
        for index, window in enumerate(windows)
    ]
    return [window for _, _, window in sorted(placed, key=lambda entry: entry[:2])]


class _Packer:
    def __init__(self, bos: list[int], length: int) -> None:
        self.bos, self.length = bos, length
        self.windows: list[Window] = [[]]
        self.segment = Segment()
        self.num_split = 0

    @property
    def room(self) -> int:
        """Tokens that still fit, the BOS of a new segment set aside."""
        used = sum(map(len, self.windows[-1])) + len(self.segment)
        return self.length - used - (0 if self.segment else len(self.bos))

    def start_segment(self) -> None:
        if self.segment:
            self.windows[-1].append(self.segment)
        self.segment = Segment()

    def next_window(self) -> None:
        self.start_segment()
        self.windows.append([])

    def add(self, piece: Piece, splittable: bool) -> None:
        tokens = piece.tokens
        if not splittable and len(tokens) > self.length - len(self.bos):
            self.num_split += 1
            splittable = True
        if self.room < (min(MIN_SEGMENT_TOKENS, len(tokens)) if splittable else len(tokens)):
            self.next_window()
        while tokens:
            if self.room <= 0:
                self.next_window()
            head, tokens = tokens[: self.room], tokens[self.room :]
            if not self.segment:
                self.segment.add(self.bos, piece.counts)
            self.segment.add(head, piece.counts)

    def finish(self) -> list[Window]:
        self.start_segment()
        return [window for window in self.windows if window]
