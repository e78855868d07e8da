"""Quantized forms of a loaded model's weights, made by rounding: quality does not matter here, every layout does."""

from __future__ import annotations

from dataclasses import replace

import torch

from octavo.models.decoder import DecoderModel
from octavo.numerics.packed_tensor import PackedTensor
from octavo.numerics.scheme import IntegerScheme
from octavo.ops.base import Linear


def pack_linears(
    model: DecoderModel, bits: int = 4, group_size: int | None = 16, symmetric: bool = True, head_bits: int | None = 8
) -> DecoderModel:
    """All of the layers' linears, and the embedding and head (one scale a row) unless `head_bits` is None."""
    scheme = IntegerScheme(bits, group_size, symmetric)
    for layer in model.layers:
        for linear in list(layer.linears()):
            layer.replace_linear(Linear(linear.name, rounded(linear.weight, scheme), linear.bias))
    if head_bits is not None:
        per_row = IntegerScheme(head_bits, None, True)
        tied = model.head.weight is model.embedding.weight
        table = rounded(model.embedding.weight, per_row)
        model.embedding = replace(model.embedding, weight=table)
        model.head = replace(model.head, weight=table if tied else rounded(model.head.weight, per_row))
    return model


def rounded(weight: torch.Tensor, scheme: IntegerScheme) -> PackedTensor:
    """Nearest codes; float16 scales."""
    rows, columns = weight.shape
    groups = weight.to(torch.float32).reshape(rows, scheme.num_groups(columns), -1)
    if scheme.symmetric:
        scale = (groups.abs().amax(-1) / scheme.highest).clamp_min(1e-4).to(torch.float16)
        zero_point = None
    else:
        low, high = groups.amin(-1).clamp_max(0), groups.amax(-1).clamp_min(0)
        scale = ((high - low) / (scheme.highest - scheme.lowest)).clamp_min(1e-4).to(torch.float16)
        zero_point = (scheme.lowest - low / scale.float()).round().clamp(scheme.lowest, scheme.highest).to(torch.int8)
    codes = (groups / scale.float()[..., None]).round()
    if zero_point is not None:
        codes += zero_point[..., None]
    codes = codes.clamp(scheme.lowest, scheme.highest).to(torch.int8).reshape(rows, columns)
    return PackedTensor.from_codes(codes, scale, zero_point, scheme)
