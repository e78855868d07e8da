"""Scales of cached keys and values, by KV head, and keys made even enough for one scale to serve all their channels.

A cached number is code * scale with one scale for each head, so a head's loudest key channel decides how coarse all of
them are. Scores are sums of q_j k_j: what divides k_j may multiply q_j. Folded into the projections, this gives each
channel a scale of its own, and the cache and its kernels know nothing of it (KIVI, Liu et al. 2024, shows why keys want
scales by channel; quantization.md 3.8).
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from octavo.models.decoder import DecoderLayer, queries_keys_values
from octavo.numerics.kv_scales import KvScales
from octavo.ops.base import Linear, Norm
from octavo.ops.reference.batch import Batch
from octavo.quantize.block_states import BlockStates
from octavo.quantize.bulk_ops import BulkOps, dense

_LARGEST = {"int8": 127.0, "fp8": 448.0}
#: A channel gets at most this share of its head's scale: one that was quiet on the calibration text may speak later.
_SMALLEST_SHARE = 1 / 16
#: Expected share of the error of scores that must go away, or keys stay as they are.
_WORTH = 0.1


def calibrate_kv(layer: DecoderLayer, hidden: Tensor, batch: Batch, format: str) -> KvScales:
    """Scales that map each head's largest magnitude, over all rows of `hidden` `[rows, hidden]` that enter `layer`, to
    the grid's end: context is cached too. A head that is silent on all of them gets its layer's largest scale, or 1
    where all are silent."""
    _, keys, values = _queries_keys_values(layer, hidden, batch)

    def scales(x: Tensor) -> tuple[float, ...]:
        largest = x.abs().amax((0, 2))
        loudest = largest.max() if bool(largest.max() > 0) else torch.tensor(_LARGEST[format])
        return tuple((torch.where(largest > 0, largest, loudest) / _LARGEST[format]).tolist())

    return KvScales(format, scales(keys), scales(values))


def equalize_keys(layer: DecoderLayer, states: BlockStates, format: str) -> str:
    """Fold a factor for each key channel into q and k (into their norms where the family has them; it is then one for
    all heads), if scores gain. `layer` is changed in place and computes the same. Returns what was done."""
    if format != "int8":
        return "keys as they are: steps of fp8 grow with the number, channels need no scales of their own"
    queries, keys, _ = _queries_keys_values(layer, states.hidden, states.batch)
    factor, gain = _key_factors(layer, queries, keys)
    if gain < _WORTH:
        return f"keys as they are: scales by channel would take away {gain:.0%} of the error of scores"
    _fold(layer, factor)
    return f"key channels equalized: {gain:.0%} less error of scores expected"


def _queries_keys_values(layer: DecoderLayer, hidden: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """As attention gets them: `[rows, heads, head_dim]`, keys and values with KV heads."""
    ops = BulkOps()
    with torch.inference_mode():
        parts = queries_keys_values(ops, layer, ops.norm(hidden, layer.input_norm), batch)
        q, k, v = (part.unflatten(1, (-1, layer.attention.head_dim)) for part in parts)
    return q, k, v


def _key_factors(layer: DecoderLayer, queries: Tensor, keys: Tensor) -> tuple[Tensor, float]:
    """What each key channel is divided by, `[kv heads, head_dim]`, and the share of the scores' error it takes away.

    With factors c a head's scale is max_j(m_j / c_j) for the largest magnitudes m_j, and the error of scores goes with
    scale^2 sum_j E[q_j^2] c_j^2: least at c = m. Rotation mixes the two channels of a pair: they share a factor, and
    m_j is the pair's largest length, which no position changes.
    """
    num_kv_heads = keys.shape[1]
    largest = _over_pairs(keys.square(), layer).amax(0).sqrt()
    energy = queries.square().mean(0).unflatten(0, (num_kv_heads, -1)).sum(1)
    if layer.k_norm is not None:
        largest, energy = largest.amax(0, keepdim=True), energy.sum(0, keepdim=True)
    loudest = largest.amax(1, keepdim=True)
    factor = torch.maximum(largest, loudest * _SMALLEST_SHARE)
    factor = torch.where(loudest > 0, factor, torch.ones_like(factor))
    before, after = (energy * loudest.square()).sum(), (energy * factor.square()).sum()
    gain = float(1 - after / before) if float(before) > 0 else 0.0
    factor = factor / factor.log().mean(1, keepdim=True).exp()
    return factor.expand(num_kv_heads, -1), gain


def _over_pairs(squares: Tensor, layer: DecoderLayer) -> Tensor:
    """`[rows, heads, head_dim]`: squared length of the rotated pair that a channel belongs to."""
    half = len(layer.rope.inverse_frequencies)
    first, second, rest = squares[..., :half], squares[..., half : 2 * half], squares[..., 2 * half :]
    return torch.cat((first + second, first + second, rest), dim=-1)


def _fold(layer: DecoderLayer, factor: Tensor) -> None:
    """`factor` `[kv heads, head_dim]`; with head norms all rows are the same."""
    if layer.q_norm is not None and layer.k_norm is not None:
        layer.replace_norm(_scaled_norm(layer.q_norm, factor[0]))
        layer.replace_norm(_scaled_norm(layer.k_norm, 1 / factor[0]))
        return
    repeats = layer.attention.num_heads // layer.attention.num_kv_heads
    layer.replace_linear(_scaled_rows(layer.q, factor.repeat_interleave(repeats, 0).flatten()))
    layer.replace_linear(_scaled_rows(layer.k, 1 / factor.flatten()))


def _scaled_norm(norm: Norm, factor: Tensor) -> Norm:
    return replace(norm, weight=norm.weight * factor)


def _scaled_rows(linear: Linear, factor: Tensor) -> Linear:
    bias = None if linear.bias is None else linear.bias * factor
    return replace(linear, weight=dense(linear.weight) * factor[:, None], bias=bias)
