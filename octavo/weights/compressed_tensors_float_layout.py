"""One module's stored tensors <-> `FloatTensor`, in compressed-tensors' floating-point layouts.

float-quantized, naive-quantized: `weight` float8_e4m3fn `[out, in]`; `weight_scale` float `[1]`, `[out, 1]`,
`[ceil(out / 128), ceil(in / 128)]` or `[out, groups]`.
mxfp8-quantized: the same, `weight_scale` uint8 exponents of two, bias 127, `[out, in / 32]`.
nvfp4-pack-quantized: `weight_packed` uint8 `[out, in / 2]`, the even column in the low nibble; `weight_scale`
float8_e4m3fn `[out, in / 16]`; `weight_global_scale` float32 `[1]`, which divides.
mxfp4-pack-quantized: `weight_packed` as before; `weight_scale` uint8 exponents `[out, in / 32]`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from octavo.core.errors import CheckpointError, InvalidField
from octavo.numerics.float_scheme import BLOCK, FloatFormat, FloatScheme, Granularity, ScaleFormat
from octavo.numerics.float_tensor import FloatTensor

WEIGHT, PACKED, SCALE, GLOBAL_SCALE = "weight", "weight_packed", "weight_scale", "weight_global_scale"
_STORED_SCALES = {ScaleFormat.E4M3: torch.float8_e4m3fn, ScaleFormat.E8M0: torch.uint8}


def float_parts(scheme: FloatScheme) -> tuple[str, ...]:
    """Local names a module of this scheme must have."""
    codes = PACKED if scheme.format is FloatFormat.E2M1 else WEIGHT
    return (codes, SCALE, GLOBAL_SCALE) if scheme.has_global_scale else (codes, SCALE)


def encode_float_parts(tensor: FloatTensor) -> dict[str, Tensor]:
    """Stored tensors by their local names. Raises `InvalidField` for E5M2, which no config can declare."""
    scheme = tensor.scheme
    if scheme.format is FloatFormat.E5M2:
        raise InvalidField("scheme", str(scheme), "no checkpoint format can declare E5M2 weights; use E4M3")
    is_matrix_scale = scheme.granularity is Granularity.TENSOR
    parts = {SCALE: tensor.scale.reshape(1) if is_matrix_scale else tensor.scale.contiguous()}
    if scheme.format is FloatFormat.E2M1:
        parts[PACKED] = tensor.codes.contiguous()
    else:
        parts[WEIGHT] = tensor.codes.contiguous().view(torch.float8_e4m3fn)
    if tensor.global_scale is not None:
        parts[GLOBAL_SCALE] = tensor.global_scale.reshape(1)
    return parts


def decode_float(module: str, parts: Mapping[str, Tensor], scheme: FloatScheme) -> FloatTensor:
    """The inverse. Scales of 16 bits become float32. Raises `CheckpointError` naming the tensor whose shape, type or
    value is wrong."""
    if scheme.format is FloatFormat.E2M1:
        codes = _check(module, PACKED, parts[PACKED], torch.uint8)
        rows, columns = codes.shape[0], 2 * codes.shape[1]
    else:
        codes = _check(module, WEIGHT, parts[WEIGHT], torch.float8_e4m3fn).view(torch.uint8)
        rows, columns = codes.shape
    scale = _scale(module, parts[SCALE], scheme, (rows, columns))
    global_scale = None
    if scheme.has_global_scale:
        global_scale = parts[GLOBAL_SCALE].to(torch.float32).reshape(-1)
        if global_scale.numel() != 1 or not 0 < float(global_scale) < float("inf"):
            found = global_scale.tolist()
            raise CheckpointError(f"{module}.{GLOBAL_SCALE}: holds {found}, not one positive finite number")
    return FloatTensor(codes, scale, global_scale, scheme, (rows, columns))


def _scale(module: str, stored: Tensor, scheme: FloatScheme, shape: tuple[int, int]) -> Tensor:
    rows, columns = shape
    try:
        groups = scheme.num_groups(columns)
    except InvalidField as error:
        raise CheckpointError(f"{module}: {error}") from error
    expected = {Granularity.TENSOR: (1, 1), Granularity.BLOCK: (-(-rows // BLOCK), groups)}
    wanted = expected.get(scheme.granularity, (rows, groups))
    if scheme.granularity is Granularity.TENSOR and stored.numel() == 1:
        stored = stored.reshape(1, 1)
    dtype = _STORED_SCALES.get(scheme.scale_format)
    if dtype is None:
        dtype = stored.dtype
        if stored.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            raise CheckpointError(f"{module}.{SCALE}: has dtype {stored.dtype}, not a floating-point one")
    if stored.dtype != dtype or tuple(stored.shape) != wanted:
        raise CheckpointError(
            f"{module}.{SCALE}: is {stored.dtype} {list(stored.shape)}, but its scheme asks for {dtype} {list(wanted)}"
        )
    return stored if scheme.scale_format in _STORED_SCALES else stored.to(torch.float32)


def _check(module: str, part: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if tensor.dtype != dtype or tensor.ndim != 2:
        raise CheckpointError(f"{module}.{part}: is {tensor.dtype} {list(tensor.shape)}, not a matrix of {dtype}")
    return tensor
