"""Grouped-query attention over tiles of keys, with a running softmax (Milakov and Gimelshein 2018; FlashAttention,
Dao et al. 2022), such that a query's bits depend on its own sequence alone."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from octavo.ops.base import Attention
from octavo.ops.reference.attention_plan import KEY_TILE, QUERY_TILES, ItemGroup
from octavo.ops.reference.batch import Batch

#: Scores computed at once: 2 M float32 values, 8 MiB.
MAX_SCORES = 1 << 21
#: Below any score, yet finite: a tile that is hidden whole then changes nothing, and no NaN arises.
_LOWEST = -1e30
#: Rows of a matrix product are padded to a multiple of this (fewer than 4 rows round differently).
_ROW_MULTIPLE = 4
#: Head features likewise (an odd number of columns rounds differently from row to row).
_FEATURE_MULTIPLE = 8


def max_items(attention: Attention) -> tuple[int, ...]:
    """Items of each of `QUERY_TILES` that a group may have, so that its scores stay within `MAX_SCORES`."""
    return tuple(max(1, MAX_SCORES // (KEY_TILE * attention.num_heads * queries)) for queries in QUERY_TILES)


def attend(q: Tensor, keys: Tensor, values: Tensor, attention: Attention, batch: Batch) -> Tensor:
    """q `[rows, heads, head_dim]`, keys and values `[slots, kv_heads, head_dim]` -> `[rows, heads, head_dim]`."""
    scaled = q * attention.scale
    result = torch.empty_like(q)
    for group in batch.plan(attention.window, max_items(attention)):
        output = _attend_group(scaled, keys, values, attention, group)
        result[group.rows[group.used]] = output[group.used]
    return result


def _attend_group(q: Tensor, keys: Tensor, values: Tensor, attention: Attention, group: ItemGroup) -> Tensor:
    """-> `[items, queries, heads, head_dim]`."""
    num_items, num_queries = group.rows.shape
    num_kv_heads, head_dim = attention.num_kv_heads, attention.head_dim
    per_kv_head = attention.num_heads // num_kv_heads
    # All queries that read one key head stand side by side: [items * kv_heads, heads per kv head * queries, head_dim].
    queries = q[group.rows].reshape(num_items, num_queries, num_kv_heads, per_kv_head, head_dim)
    queries = queries.permute(0, 2, 3, 1, 4).reshape(num_items * num_kv_heads, per_kv_head * num_queries, head_dim)
    num_rows = queries.shape[1]
    queries = pad(queries, (0, -head_dim % _FEATURE_MULTIPLE, 0, -num_rows % _ROW_MULTIPLE))
    highest = queries.new_full((*queries.shape[:2], 1), _LOWEST)
    total = torch.zeros_like(highest)
    output = torch.zeros_like(queries)
    for visit in group.visits:
        active = slice(0, visit.num_items * num_kv_heads)
        tile_keys = _gather(keys, visit.slots, visit.num_items)
        scores = torch.bmm(queries[active], tile_keys.transpose(1, 2))
        if attention.softcap is not None:
            scores = scores.div_(attention.softcap).tanh_().mul_(attention.softcap)
        if visit.hidden is not None:
            shape = (visit.num_items, num_kv_heads, per_kv_head, num_queries, KEY_TILE)
            scores[:, :num_rows].view(shape).masked_fill_(visit.hidden, -torch.inf)
        new_highest = torch.maximum(highest[active], scores.amax(-1, keepdim=True))
        weights = scores.sub_(new_highest).exp_()
        fade = (highest[active] - new_highest).exp_()
        highest[active] = new_highest
        total[active] = total[active] * fade + weights.sum(-1, keepdim=True)
        output[active] = output[active] * fade + torch.bmm(weights, _gather(values, visit.slots, visit.num_items))
    output = (output / total)[:, :num_rows, :head_dim]
    output = output.reshape(num_items, num_kv_heads, per_kv_head, num_queries, head_dim)
    return output.permute(0, 3, 1, 2, 4).reshape(num_items, num_queries, attention.num_heads, head_dim)


def _gather(source: Tensor, slots: Tensor, num_items: int) -> Tensor:
    """Keys or values at `slots` -> float32 `[items * kv_heads, KEY_TILE, padded head_dim]`."""
    num_kv_heads, head_dim = source.shape[1:]
    tile = source.index_select(0, slots).view(num_items, KEY_TILE, num_kv_heads, head_dim)
    tile = tile.transpose(1, 2).to(torch.float32).reshape(num_items * num_kv_heads, KEY_TILE, head_dim)
    return pad(tile, (0, -head_dim % _FEATURE_MULTIPLE)) if head_dim % _FEATURE_MULTIPLE else tile
