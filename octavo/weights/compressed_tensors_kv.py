"""Scales of cached keys and values: `k_scale` and `v_scale` beside an attention module's linears.

One number `[1]` for a layer (strategy `tensor`), or one for each KV head `[heads, 1, 1]` (`attn_head`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from octavo.core.errors import CheckpointError, InvalidField
from octavo.numerics.kv_scales import KvScales
from octavo.weights.compressed_tensors_args import KvFormat

K_SCALE, V_SCALE = "k_scale", "v_scale"


def kv_format_of(scales: Iterable[KvScales]) -> KvFormat | None:
    """What a config says of all layers; None without scales. Raises `InvalidField` where layers differ in format."""
    layers = list(scales)
    formats = sorted({layer.format for layer in layers})
    if not formats:
        return None
    if len(formats) > 1:
        raise InvalidField("kv_cache", formats, "compressed-tensors has one format for the caches of all layers")
    return KvFormat(formats[0], any(len({*layer.keys}) > 1 or len({*layer.values}) > 1 for layer in layers))


def encode_kv(attention: str, scales: KvScales, kv: KvFormat) -> dict[str, Tensor]:
    """Stored tensors by their full names."""
    parts = {}
    for part, numbers in ((K_SCALE, scales.keys), (V_SCALE, scales.values)):
        tensor = torch.tensor(numbers, dtype=torch.float32)
        parts[f"{attention}.{part}"] = tensor.reshape(-1, 1, 1) if kv.per_head else tensor[:1]
    return parts


def decode_kv(attention: str, parts: Mapping[str, Tensor], kv: KvFormat, num_kv_heads: int) -> KvScales:
    """Scales for each KV head. Raises `CheckpointError` where they are missing, of another number, or not positive
    and finite: an engine that took 1 instead would answer with garbage."""
    found = {}
    for part in (K_SCALE, V_SCALE):
        if part not in parts:
            raise CheckpointError(f"{attention}.{part}: missing; kv_cache_scheme promises it; calibrate again")
        stored = parts[part]
        wanted = num_kv_heads if kv.per_head else 1
        if stored.numel() != wanted:
            raise CheckpointError(f"{attention}.{part}: holds {list(stored.shape)} numbers, not {wanted}")
        found[part] = tuple(stored.to(torch.float32).flatten().expand(num_kv_heads).tolist())
    try:
        return KvScales(kv.format, found[K_SCALE], found[V_SCALE])
    except InvalidField as error:
        raise CheckpointError(f"{attention}.{error.field}: got {error.value}; {error.expected}") from error
