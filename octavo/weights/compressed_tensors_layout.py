"""One module's stored tensors <-> a quantized matrix. Here: compressed-tensors' two integer layouts.

pack-quantized: `weight_packed` int32 `[out, ceil(in * bits / 32)]`, `weight_scale` `[out, groups]`, `weight_shape`
int64 `[2]`, and when asymmetric `weight_zero_point` int32 `[ceil(out * bits / 32), groups]`, packed along the outputs.
int-quantized: `weight` int8 `[out, in]`, `weight_scale` `[out, groups]`, when asymmetric `weight_zero_point` int8
`[out, groups]`. Codes and zero points are stored plus 2^(bits-1) where packed, as they are where not. Floating-point
layouts: `compressed_tensors_float_layout`. Inputs: `input_scale`, or `input_global_scale` (NVFP4), float32 `[1]`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from octavo.core.errors import CheckpointError, InvalidField
from octavo.numerics.activations import ActivationFormat, ActivationScheme, InputQuantizer
from octavo.numerics.float_tensor import FloatTensor
from octavo.numerics.packed_tensor import PackedTensor
from octavo.numerics.packing import pack_codes, packed_words, unpack_codes
from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.numerics.scheme import IntegerScheme
from octavo.weights.compressed_tensors_args import Layout, ModuleFormat
from octavo.weights.compressed_tensors_float_layout import (
    PACKED,
    SCALE,
    WEIGHT,
    decode_float,
    encode_float_parts,
    float_parts,
)

SHAPE, ZERO_POINT = "weight_shape", "weight_zero_point"
INPUT_SCALE, INPUT_GLOBAL_SCALE = "input_scale", "input_global_scale"


def encode_module(tensor: QuantizedTensor, layout: Layout, inputs: InputQuantizer | None = None) -> dict[str, Tensor]:
    """Stored tensors of one module by their local names."""
    scale = {} if inputs is None or inputs.scale is None else {_input_part(inputs.scheme): inputs.scale.reshape(1)}
    if isinstance(tensor, FloatTensor):
        return encode_float_parts(tensor) | scale
    assert isinstance(tensor, PackedTensor)
    parts = {SCALE: tensor.scale.contiguous()} | scale
    if layout is Layout.INT_QUANTIZED:
        parts[WEIGHT] = tensor.codes()
        if tensor.zero_point is not None:
            parts[ZERO_POINT] = tensor.zero_point.contiguous()
        return parts
    parts[PACKED] = tensor.words.contiguous()
    parts[SHAPE] = torch.tensor(tensor.shape, dtype=torch.int64)
    if tensor.zero_point is not None:
        parts[ZERO_POINT] = pack_codes(tensor.zero_point.T, tensor.scheme.bits).T.contiguous()
    return parts


def required_parts(module_format: ModuleFormat) -> tuple[str, ...]:
    """Local names a module of this format must have."""
    scheme, inputs = module_format.scheme, module_format.inputs
    scale = (_input_part(inputs),) if inputs is not None and inputs.needs_scale else ()
    if not isinstance(scheme, IntegerScheme):
        return (*float_parts(scheme), *scale)
    zero_point = () if scheme.symmetric else (ZERO_POINT,)
    stored = (PACKED, SHAPE) if module_format.layout is Layout.PACK_QUANTIZED else (WEIGHT,)
    return (*stored, SCALE, *zero_point, *scale)


def decode_inputs(module: str, parts: Mapping[str, Tensor], scheme: ActivationScheme) -> InputQuantizer:
    """How `module` rounds its inputs. Raises `CheckpointError` for a scale that is not a positive finite number."""
    part = _input_part(scheme)
    try:
        return InputQuantizer(scheme, parts[part].to(torch.float32).reshape(-1) if scheme.needs_scale else None)
    except InvalidField as error:
        raise CheckpointError(f"{module}.{part}: got {error.value}; {error.expected}") from error


def _input_part(scheme: ActivationScheme) -> str:
    return INPUT_GLOBAL_SCALE if scheme.format is ActivationFormat.NVFP4 else INPUT_SCALE


def decode_module(module: str, parts: Mapping[str, Tensor], module_format: ModuleFormat) -> QuantizedTensor:
    """The inverse of `encode_module`. Raises `CheckpointError` naming the tensor whose shape or type is wrong."""
    scheme = module_format.scheme
    if not isinstance(scheme, IntegerScheme):
        return decode_float(module, parts, scheme)
    if module_format.layout is Layout.PACK_QUANTIZED:
        shape = _stored_shape(module, parts[SHAPE])
        words = _packed_words(module, parts[PACKED], shape, scheme.bits)
    else:
        codes = parts[WEIGHT]
        _check(module, WEIGHT, codes, torch.int8, tuple(codes.shape[:2]))
        shape = (codes.shape[0], codes.shape[1])
        words = pack_codes(_inside(module, codes, scheme), scheme.bits)
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
    scheme = module_format.scheme
    assert isinstance(scheme, IntegerScheme)
    if module_format.layout is Layout.PACK_QUANTIZED:
        _check(module, ZERO_POINT, stored, torch.int32, (packed_words(rows, scheme.bits), groups))
        return unpack_codes(stored.T.contiguous(), scheme.bits, rows).T.contiguous()
    expanded = _expand(stored, rows, module_format)
    _check(module, ZERO_POINT, expanded, torch.int8, (rows, groups))
    return _inside(module, expanded, scheme, ZERO_POINT)


def _expand(stored: Tensor, rows: int, module_format: ModuleFormat) -> Tensor:
    if module_format.per_tensor and stored.numel() == 1:
        return stored.reshape(1, 1).expand(rows, 1).contiguous()
    return stored


def _inside(module: str, codes: Tensor, scheme: IntegerScheme, part: str = WEIGHT) -> Tensor:
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
