"""Rounding to a floating-point grid: which scales, then which codes (quantization.md 2c, 3.6).

Codes saturate: nothing becomes NaN. A group of zeros has scale 1 (an exponent of 0 for powers of two).
"""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.core.errors import InvalidField
from octavo.numerics.activations import ActivationFormat
from octavo.numerics.float_scheme import BLOCK, FloatFormat, FloatScheme, Granularity, ScaleFormat
from octavo.numerics.float_tensor import E2M1_VALUES, FloatTensor

_TORCH_FORMATS = {FloatFormat.E4M3: torch.float8_e4m3fn, FloatFormat.E5M2: torch.float8_e5m2}
#: Half-way points between FP4 values; a tie goes to the even code, so some of them belong to the code above.
_E2M1_BOUNDS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
_E2M1_TIES_UP = (False, True, False, True, False, True, False)
_SMALLEST_E4M3 = 2.0**-9


def encode_float(
    weight: Tensor,
    scheme: FloatScheme,
    *,
    global_scale: Tensor | None = None,
    search: bool = True,
    importance: Tensor | None = None,
) -> FloatTensor:
    """Nearest codes of `weight` `[rows, columns]`. `global_scale` float32 `[1]` is what fused members of an NVFP4
    scheme share (`nvfp4_global_scale`); None: the matrix's own.

    Raises `InvalidField` for weights that are not finite and for groups that do not divide the columns.
    """
    weight = weight.to(torch.float32)
    rows, columns = weight.shape
    if not bool(torch.isfinite(weight).all()):
        raise InvalidField("weight", "inf or nan", "weights must be finite to be quantized")
    scheme.num_groups(columns)
    if scheme.has_global_scale and global_scale is None:
        global_scale = nvfp4_global_scale(weight.abs().max())
    largest = _largest(weight, scheme)
    scale = _stored_scale(largest / scheme.format.largest, scheme, global_scale)
    empty = FloatTensor(torch.empty(0, dtype=torch.uint8), scale, global_scale, scheme, (rows, columns))
    step = empty.row_scales().repeat_interleave(empty.inputs_per_scale, dim=1)[:, :columns]
    codes = encode_values(weight / step, scheme.format)
    return FloatTensor(codes, scale, global_scale, scheme, (rows, columns))


def nvfp4_global_scale(largest: Tensor) -> Tensor:
    """448 * 6 / the largest magnitude, float32 `[1]`: the largest block scale becomes 448."""
    largest = largest.to(torch.float32).reshape(1)
    return torch.where(largest > 0, 448.0 * 6.0 / largest, torch.ones_like(largest))


def encode_values(values: Tensor, format: FloatFormat) -> Tensor:
    """Nearest codes, ties to even, saturated: uint8 like `FloatTensor.codes`."""
    values = values.clamp(-format.largest, format.largest)
    if format is not FloatFormat.E2M1:
        return values.to(_TORCH_FORMATS[format]).view(torch.uint8)
    magnitude = values.abs()
    codes = torch.zeros_like(values, dtype=torch.uint8)
    for bound, tie_up in zip(_E2M1_BOUNDS, _E2M1_TIES_UP, strict=True):
        codes += (magnitude >= bound) if tie_up else (magnitude > bound)
    codes |= torch.signbit(values).to(torch.uint8) << 3
    return codes[:, 0::2] | (codes[:, 1::2] << 4)


def round_fp4_rows(x: Tensor, format: ActivationFormat) -> Tensor:
    """Rows `[tokens, inputs]` on the NVFP4 or MXFP4 grid, float32, each row by itself (emulated FP4 activations)."""
    from octavo.numerics.float_scheme import MXFP4, NVFP4

    scheme = NVFP4 if format is ActivationFormat.NVFP4 else MXFP4
    groups = x.reshape(len(x), -1, scheme.group_size or 1)
    largest = groups.abs().amax(-1)
    if scheme.has_global_scale:
        whole = torch.where(largest.amax(-1, keepdim=True) > 0, 2688.0 / largest.amax(-1, keepdim=True), 1.0)
        scale = _stored_scale(largest / 6.0, scheme, whole).to(torch.float32) / whole
    else:
        scale = torch.exp2(_stored_scale(largest / 6.0, scheme, None).to(torch.float32) - 127)
    codes = encode_values((groups / scale.unsqueeze(-1)).reshape(x.shape), FloatFormat.E2M1)
    nibbles = torch.stack((codes & 15, codes >> 4), dim=-1).reshape(groups.shape)
    return (torch.tensor(E2M1_VALUES)[nibbles.to(torch.int64)] * scale.unsqueeze(-1)).reshape(x.shape)


def _largest(weight: Tensor, scheme: FloatScheme) -> Tensor:
    """Largest magnitudes, shaped like the scales."""
    magnitude = weight.abs()
    if scheme.granularity is Granularity.TENSOR:
        return magnitude.amax().reshape(1, 1)
    if scheme.granularity is Granularity.CHANNEL:
        return magnitude.amax(1, keepdim=True)
    if scheme.granularity is Granularity.GROUP:
        return magnitude.reshape(len(weight), -1, scheme.group_size or 1).amax(-1)
    return torch.stack([
        torch.stack([block.amax() for block in band.split(BLOCK, dim=1)]) for band in magnitude.split(BLOCK)
    ])  # fmt: skip


def _stored_scale(scale: Tensor, scheme: FloatScheme, global_scale: Tensor | None) -> Tensor:
    """Scales as the file holds them; where all weights are zero: 1."""
    match scheme.scale_format:
        case ScaleFormat.E8M0:
            return _exponent(scale * scheme.format.largest, scheme.format)
        case ScaleFormat.E4M3:
            assert global_scale is not None
            stored = (scale * global_scale).clamp(_SMALLEST_E4M3, 448.0)
            return torch.where(scale > 0, stored, 1.0).to(torch.float8_e4m3fn)
        case ScaleFormat.BFLOAT16:
            return torch.where(scale > 0, scale, 1.0).to(torch.bfloat16)
        case _:
            return torch.where(scale > 0, scale, 1.0)


def _exponent(largest: Tensor, format: FloatFormat) -> Tensor:
    """E8M0 exponents, bias 127: floor(log2(largest)) less the grid's own, one more where the mantissa would clip."""
    mantissa, exponent = torch.frexp(largest)  # mantissa in [.5, 1)
    grid = 2 if format is FloatFormat.E2M1 else 8
    bound = 1.75 / 2
    exponent = exponent - 1 - grid + (mantissa >= bound).to(exponent.dtype)
    return torch.where(largest > 0, exponent + 127, 127).clamp(0, 254).to(torch.uint8)
