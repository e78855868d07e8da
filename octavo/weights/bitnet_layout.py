"""One linear's stored tensors <-> ternary `PackedTensor`, as transformers stores BitNet (quantization.md 2f).

`weight` uint8 `[out / 4, in]`: bits 2i of row r hold code + 1 of output i * out / 4 + r. `weight_scale` `[1]`: the
number codes are multiplied by (`autobitlinear`), or its reciprocal (`bitlinear`, which divides).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import torch
from torch import Tensor

from octavo.core.errors import CheckpointError
from octavo.numerics.packed_tensor import PackedTensor
from octavo.numerics.scheme import IntegerScheme

WEIGHT, SCALE = "weight", "weight_scale"
CODES_IN_BYTE = 4
TERNARY = IntegerScheme(2, None, True, ternary=True)


class LinearClass(StrEnum):
    """transformers' class that computes with the tensors."""

    DIVIDES = "bitlinear"
    MULTIPLIES = "autobitlinear"


def encode_bitnet(packed: PackedTensor, linear_class: LinearClass) -> dict[str, Tensor]:
    """Stored tensors of one linear by their local names; the scale is float32. The matrix has one scale and a number
    of outputs that divides by four (`bitnet_writer` checks)."""
    quarters = (packed.codes() + 1).to(torch.uint8).reshape(CODES_IN_BYTE, -1, packed.shape[1])
    words = quarters[0] | quarters[1] << 2 | quarters[2] << 4 | quarters[3] << 6
    scale = packed.scale[0].to(torch.float32)
    return {WEIGHT: words, SCALE: scale.clone() if linear_class is LinearClass.MULTIPLIES else reciprocal(scale)}


def reciprocal(scale: Tensor) -> Tensor:
    """The float32 number whose reciprocal is `scale` again where there is one, else the nearest."""
    nearest = 1.0 / scale
    up, down = (torch.nextafter(nearest, torch.tensor(limit)) for limit in (torch.inf, -torch.inf))
    for candidate in (nearest, up, down):
        if bool((1.0 / candidate == scale).all()):
            return candidate
    return nearest


def decode_bitnet(module: str, parts: Mapping[str, Tensor], linear_class: LinearClass) -> PackedTensor:
    """The inverse of `encode_bitnet`. Raises `CheckpointError` naming the tensor that is wrong."""
    words, scale = parts[WEIGHT], parts[SCALE]
    if words.ndim != 2 or words.dtype != torch.uint8:
        raise CheckpointError(f"{module}.{WEIGHT}: is {words.dtype} {list(words.shape)}, not a uint8 matrix")
    if scale.numel() != 1 or not scale.is_floating_point():
        raise CheckpointError(f"{module}.{SCALE}: is {scale.dtype} {list(scale.shape)}, not one number")
    codes = torch.cat([words >> (2 * quarter) & 3 for quarter in range(CODES_IN_BYTE)]).to(torch.int8) - 1
    if int(codes.max()) > 1:
        raise CheckpointError(f"{module}.{WEIGHT}: holds the code 3, which is none of -1, 0, 1")
    if linear_class is LinearClass.DIVIDES:
        scale = 1.0 / scale.to(torch.float32)
    return ternary(codes, scale)


def absmean_ternary(weight: Tensor) -> PackedTensor:
    """What transformers makes of a dense weight in every step (`quantization_mode: online`)."""
    mean = weight.to(torch.float32).abs().mean().clamp_min(1e-5)
    codes = (weight.to(torch.float32) * (1.0 / mean)).round_().clamp_(-1, 1).to(torch.int8)
    return ternary(codes, mean)


def ternary(codes: Tensor, scale: Tensor) -> PackedTensor:
    """int8 codes -1, 0, 1 and their one scale."""
    return PackedTensor.from_codes(codes, scale.reshape(1, 1).expand(len(codes), 1).contiguous(), None, TERNARY)
