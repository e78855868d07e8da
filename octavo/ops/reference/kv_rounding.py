"""What a KV format makes of keys and values: the numbers that are read back, as float32."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.numerics.activations import INT8_LARGEST
from octavo.ops.base import Attention
from octavo.ops.kv_format import KvFormat

_FP8 = {KvFormat.FP8: torch.float8_e4m3fn, KvFormat.FP8_E5M2: torch.float8_e5m2}


def round_kv(x: Tensor, format: KvFormat, scales: Tensor | None) -> Tensor:
    """Keys or values `[rows, kv_heads, head_dim]` float32; `scales` `[kv_heads, 1]` of a calibrated format."""
    match format:
        case KvFormat.FLOAT32 | KvFormat.BFLOAT16:
            return x
        case KvFormat.INT8:
            return _own_scale(x)
        case KvFormat.INT8_CALIBRATED:
            assert scales is not None
            return (x / scales).clamp_(-INT8_LARGEST, INT8_LARGEST).round_().mul_(scales)
    dtype = _FP8[format]
    largest = torch.finfo(dtype).max
    divided = x.clone() if scales is None else x / scales
    rounded = divided.clamp_(-largest, largest).to(dtype).to(torch.float32)
    return rounded if scales is None else rounded.mul_(scales)


def scale_tensors(format: KvFormat, layer: Attention) -> tuple[Tensor | None, Tensor | None]:
    """The keys' and the values' scales `[kv_heads, 1]`; None unless the format is calibrated."""
    if not format.is_calibrated or layer.kv_scales is None:
        return None, None
    keys, values = (torch.tensor(each)[:, None] for each in (layer.kv_scales.keys, layer.kv_scales.values))
    return keys, values


def _own_scale(x: Tensor) -> Tensor:
    """One scale for each token and head."""
    largest = x.abs().amax(-1, keepdim=True)
    factor = torch.where(largest > 0, INT8_LARGEST / largest, 0.0)
    return (x * factor).round_().mul_(largest / INT8_LARGEST)
