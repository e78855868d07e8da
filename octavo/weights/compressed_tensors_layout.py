"""One module's stored tensors <-> `PackedTensor`, in compressed-tensors' two integer layouts.

pack-quantized: `weight_packed` int32 `[out, ceil(in * bits / 32)]`, `weight_scale` `[out, groups]`, `weight_shape`
int64 `[2]`, and when asymmetric `weight_zero_point` int32 `[ceil(out * bits / 32), groups]`, packed along the outputs.
int-quantized: `weight` int8 `[out, in]`, `weight_scale` `[out, groups]`, when asymmetric `weight_zero_point` int8
`[out, groups]`. Codes and zero points are stored plus 2^(bits-1) where packed, as they are where not.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from octavo.core.errors import CheckpointError, InvalidField
from octavo.numerics.packed_tensor import PackedTensor
from octavo.numerics.packing import pack_codes, packed_words, unpack_codes
from octavo.weights.compressed_tensors_config import Layout, ModuleFormat

WEIGHT, PACKED, SCALE, SHAPE, ZERO_POINT = (
    "weight", "weight_packed", "weight_scale", "weight_shape", "weight_zero_point",
)  # fmt: skip


def encode_module(packed: PackedTensor, layout: Layout) -> dict[str, Tensor]:
    """Stored tensors of one module by their local names."""
    parts = {SCALE: packed.scale.contiguous()}
    if layout is Layout.INT_QUANTIZED:
        parts[WEIGHT] = packed.codes()
        if packed.zero_point is not None:
            parts[ZERO_POINT] = packed.zero_point.contiguous()
        return parts
    parts[PACKED] = packed.words.contiguous()
    parts[SHAPE] = torch.tensor(packed.shape, dtype=torch.int64)
    if packed.zero_point is not None:
        parts[ZERO_POINT] = pack_codes(packed.zero_point.T, packed.scheme.bits).T.contiguous()
    return parts


def required_parts(module_format: ModuleFormat) -> tuple[str, ...]:
    """Local names a module of this format must have."""
    zero_point = () if module_format.scheme.symmetric else (ZERO_POINT,)
    stored = (PACKED, SHAPE) if module_format.layout is Layout.PACK_QUANTIZED else (WEIGHT,)
    return (*stored, SCALE, *zero_point)


def decode_module(module: str, parts: Mapping[str, Tensor], module_format: ModuleFormat) -> PackedTensor:
    """The inverse of `encode_module`. Raises `CheckpointError` naming the tensor whose shape or type is wrong."""
    scheme = module_format.scheme
    if module_format.layout is Layout.PACK_QUANTIZED:
        shape = _stored_shape(module, parts[SHAPE])
        words = _packed_words(module, parts[PACKED], shape, scheme.bits)
    else:
        codes = parts[WEIGHT]
        _check(module, WEIGHT, codes, torch.int8, tuple(codes.shape[:2]))
        shape = (codes.shape[0], codes.shape[1])
        words = pack_codes(_inside(module, codes, module_format), scheme.bits)
    try:
        groups = scheme.num_groups(shape[1])
    except InvalidField as error:
        raise CheckpointError(f"{module}: {error}") from error
    scale = _expand(parts[SCALE], shape[0], module_format)
    if not scale.is_floating_point():
        raise CheckpointError(f"{module}.{SCALE}: has dtype {scale.dtype}, not a floating-point one")
    _check(module, SCALE, scale, scale.dtype, (shape[0], groups))
    zero_point = None
    if not scheme.symmetric:
        zero_point = _zero_point(module, parts[ZERO_POINT], (shape[0], groups), module_format)
    return PackedTensor(words, scale, zero_point, scheme, shape)


def _stored_shape(module: str, stored: Tensor) -> tuple[int, int]:
    if stored.numel() != 2 or stored.is_floating_point() or int(stored.min()) < 1:
        raise CheckpointError(f"{module}.{SHAPE}: holds {stored.tolist()}, not [outputs, inputs]")
    rows, columns = (int(size) for size in stored.flatten().tolist())
    return rows, columns


def _packed_words(module: str, words: Tensor, shape: tuple[int, int], bits: int) -> Tensor:
    rows, columns = shape
    spaced_words = -(-columns // (32 // bits))
    if tuple(words.shape) == (rows, spaced_words) and spaced_words != packed_words(columns, bits):
        raise CheckpointError(
            f"{module}.{PACKED}: is in the layout of compressed-tensors before 2026 ({32 // bits} codes of {bits} bits "
            f"a word, the rest unused), which is not read; save it again with compressed-tensors {'>='}0.15"
        )
    _check(module, PACKED, words, torch.int32, (rows, packed_words(columns, bits)))
    return words


def _zero_point(module: str, stored: Tensor, shape: tuple[int, int], module_format: ModuleFormat) -> Tensor:
    rows, groups = shape
    bits = module_format.scheme.bits
    if module_format.layout is Layout.PACK_QUANTIZED:
        _check(module, ZERO_POINT, stored, torch.int32, (packed_words(rows, bits), groups))
        return unpack_codes(stored.T.contiguous(), bits, rows).T.contiguous()
    expanded = _expand(stored, rows, module_format)
    _check(module, ZERO_POINT, expanded, torch.int8, (rows, groups))
    return _inside(module, expanded, module_format, ZERO_POINT)


def _expand(stored: Tensor, rows: int, module_format: ModuleFormat) -> Tensor:
    if module_format.per_tensor and stored.numel() == 1:
        return stored.reshape(1, 1).expand(rows, 1).contiguous()
    return stored


def _inside(module: str, codes: Tensor, module_format: ModuleFormat, part: str = WEIGHT) -> Tensor:
    scheme = module_format.scheme
    if (
        scheme.bits < 8
        and codes.numel()
        and not scheme.lowest <= int(codes.min()) <= int(codes.max()) <= scheme.highest
    ):
        raise CheckpointError(f"{module}.{part}: holds codes outside {scheme.lowest}..{scheme.highest}")
    return codes


def _check(module: str, part: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if tensor.dtype != dtype or tuple(tensor.shape) != shape or len(shape) != 2:
        raise CheckpointError(
            f"{module}.{part}: is {tensor.dtype} {list(tensor.shape)}, but its scheme asks for {dtype} {list(shape)}"
        )
