"""Cutting a step's attention into equal pieces: query tiles, and key tiles at fixed absolute positions.

```
positions   0        256       512       768
keys        |  tile 0 |  tile 1 |  tile 2 |        the same cuts for every sequence, chunk and batch
query tile            ......[ 64 rows ]            visits tiles 0, 1, 2 in this order
```
An item is one query tile. Items of one size form a group that visits its first, second, ... key tile together; an
item whose tiles are used up drops out at the end of the group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

#: Key positions in a tile. The cut is part of what defines a result's bits.
KEY_TILE = 256
#: Queries in an item: one token, a few, many.
QUERY_TILES = (1, 16, 64)


@dataclass(frozen=True, slots=True)
class QuerySpan:
    """`num_rows` consecutive tokens of one sequence in rows from `first_row`, standing at positions from `start`."""

    sequence: int
    first_row: int
    num_rows: int
    start: int


@dataclass(frozen=True, slots=True)
class KeyVisit:
    """One tile of keys for the first `num_items` items of a group: `slots` int64 `[num_items * KEY_TILE]`;
    `hidden` bool `[num_items, 1, 1, queries, KEY_TILE]` marks what a query must not see, None: it sees all."""

    num_items: int
    slots: Tensor
    hidden: Tensor | None


@dataclass(frozen=True, slots=True)
class ItemGroup:
    """Items of one size. `rows` int64 `[items, queries]` of the step, unused places are row 0; `used` bool same."""

    rows: Tensor
    used: Tensor
    visits: tuple[KeyVisit, ...]


AttentionPlan = tuple[ItemGroup, ...]


@dataclass(frozen=True, slots=True)
class _Item:
    sequence: int
    first_row: int
    num_rows: int
    start: int
    first_tile: int
    num_tiles: int


def make_plan(
    spans: Sequence[QuerySpan], slots: Tensor, zero_slot: int, window: int | None, max_items: Sequence[int]
) -> AttentionPlan:
    """Groups of at most `max_items[i]` items of `QUERY_TILES[i]` queries; the longest of them first.

    `slots` int64 `[sequences, longest]` is filled up with `zero_slot` to whole tiles."""
    padded = pad(slots, (0, -slots.shape[1] % KEY_TILE), value=zero_slot)
    by_size: dict[int, list[_Item]] = {}
    for span in spans:
        for offset, length in _cut(span.num_rows):
            item = _item(span, offset, length, window)
            by_size.setdefault(_tile_for(length), []).append(item)
    groups = []
    for size, items in by_size.items():
        items.sort(key=lambda item: -item.num_tiles)
        limit = max_items[QUERY_TILES.index(size)]
        groups += [_group(items[i : i + limit], size, padded, window) for i in range(0, len(items), limit)]
    return tuple(groups)


def _cut(num_rows: int) -> list[tuple[int, int]]:
    """(offset, length) of each query tile of a span."""
    largest = QUERY_TILES[-1]
    return [(offset, min(largest, num_rows - offset)) for offset in range(0, num_rows, largest)]


def _tile_for(length: int) -> int:
    return min(size for size in QUERY_TILES if size >= length)


def _item(span: QuerySpan, offset: int, length: int, window: int | None) -> _Item:
    start = span.start + offset
    first_seen = 0 if window is None else max(0, start - window + 1)
    first_tile = first_seen // KEY_TILE
    num_tiles = (start + length - 1) // KEY_TILE - first_tile + 1
    return _Item(span.sequence, span.first_row + offset, length, start, first_tile, num_tiles)


def _group(items: Sequence[_Item], size: int, slots: Tensor, window: int | None) -> ItemGroup:
    offsets = torch.arange(size)
    used = offsets < torch.tensor([item.num_rows for item in items])[:, None]
    rows = (torch.tensor([item.first_row for item in items])[:, None] + offsets) * used
    queries = torch.tensor([item.start for item in items])[:, None] + offsets
    sequences = torch.tensor([item.sequence for item in items])
    first_tiles = torch.tensor([item.first_tile for item in items])
    visits = []
    for index in range(items[0].num_tiles):
        active = sum(item.num_tiles > index for item in items)
        keys = (first_tiles[:active, None] + index) * KEY_TILE + torch.arange(KEY_TILE)
        tile_slots = slots[sequences[:active, None], keys].flatten()
        visits.append(KeyVisit(active, tile_slots, _hidden(queries[:active], keys, window)))
    return ItemGroup(rows, used, tuple(visits))


def _hidden(queries: Tensor, keys: Tensor, window: int | None) -> Tensor | None:
    """queries `[items, queries]` and keys `[items, KEY_TILE]` are positions."""
    distance = queries[:, :, None] - keys[:, None, :]
    hidden = distance < 0
    if window is not None:
        hidden |= distance >= window
    return hidden[:, None, None] if bool(hidden.any()) else None
