"""Weights into the kernels' layout (`native/kernels/packed_weight.hpp`)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from octavo.core.errors import InvalidField
from octavo.numerics.float_scheme import FloatFormat, ScaleFormat
from octavo.numerics.float_tensor import FloatTensor
from octavo.numerics.packed_tensor import PackedTensor
from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.ops.native._kernels import DenseMatrix, PackedMatrix

_FORMATS = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
#: Scales of FP4 are kept in the first of these that holds them exactly.
_SCALE_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def pack(weight: Tensor | QuantizedTensor, activation_group: int | None) -> PackedMatrix | DenseMatrix:
    """A weight `[outputs, inputs]` as a matrix that owns its memory; the source is only read, and once.

    Integers and FP4 become a `PackedMatrix` for int8 activations in groups of `activation_group` inputs, FP8 and floats
    (float32, bfloat16, float16) a `DenseMatrix` with the same values for float activations: give None then. Works while
    other threads run Python.

    Raises `InvalidField` for a weight on another device, of another dtype, or with groups that activations in groups
    of `activation_group` do not divide.
    """
    if isinstance(weight, Tensor):
        return _pack_dense(weight, activation_group)
    codes = _codes_of(weight)
    return _pack_fp8(weight, activation_group) if codes is None else _pack_codes(codes, activation_group)


def packed_bytes(weight: Tensor | QuantizedTensor, activation_group: int | None) -> int:
    """Bytes of `pack(weight, activation_group)`, without packing it. Raises `InvalidField` as `pack` does."""
    if isinstance(weight, Tensor):
        outputs, inputs = weight.shape
        return DenseMatrix.bytes_of(outputs, inputs, _format_of(weight, "weight"))
    codes = _codes_of(weight)
    try:
        if codes is None:
            return DenseMatrix.bytes_of(*_fp8_layout(weight))
        return PackedMatrix.bytes_of(*_layout_of(codes, activation_group))
    except ValueError as refused:
        raise InvalidField("weight", f"{weight.scheme} {list(weight.shape)}", str(refused)) from None


class _Codes(NamedTuple):
    """Integers or FP4: rows of codes, a little-endian bit stream each, with scales `[outputs, groups]`."""

    name: str
    bits: int
    rows: Tensor
    scale: Tensor
    zero_point: Tensor | None
    inputs_per_scale: int
    output_scale: float
    shape: tuple[int, int]
    scheme: str


def _codes_of(weight: QuantizedTensor) -> _Codes | None:
    """None for FP8, whose codes are floats."""
    match weight:
        case PackedTensor(scheme=scheme):
            per_scale = scheme.group_size or weight.shape[1]
            name, parts = f"int{scheme.bits}", (weight.words, weight.scale, weight.zero_point)
            return _Codes(name, scheme.bits, *parts, per_scale, 1.0, weight.shape, str(scheme))
        case FloatTensor(scheme=scheme) if scheme.format is FloatFormat.E2M1:
            scale, output_scale = _fp4_scales(weight)
            parts = (weight.codes, scale, None)
            return _Codes("fp4 e2m1", 4, *parts, weight.inputs_per_scale, output_scale, weight.shape, str(scheme))
        case FloatTensor():
            return None
    raise InvalidField("weight", str(weight.scheme), "the native executor has no kernel for it")


def _fp4_scales(weight: FloatTensor) -> tuple[Tensor, float]:
    """Scales of the integers that FP4's doubled values are, and the factor of the whole matrix.

    E4M3 and the usual powers of two are exact in float16; NVFP4's global scale, which would not be, waits until the
    sums are there.
    """
    if weight.scheme.scale_format is ScaleFormat.E4M3 and weight.global_scale is not None:
        return (weight.scale.to(torch.float32) / 2).to(torch.float16), 1.0 / float(weight.global_scale)
    scale = weight.row_scales() / 2
    dtype = next(dtype for dtype in _SCALE_DTYPES if torch.equal(scale.to(dtype).to(torch.float32), scale))
    return scale.to(dtype), 1.0


class _Layout(NamedTuple):
    """What `PackedMatrix` is made with, in its order."""

    codes: str
    outputs: int
    inputs: int
    group: int
    inputs_per_scale: int
    scale_format: str
    has_zeros: bool
    output_scale: float


def _layout_of(codes: _Codes, group: int | None) -> _Layout:
    outputs, inputs = codes.shape
    per_scale = codes.inputs_per_scale
    if group is None or group < 1:
        raise InvalidField("activation_group", group, "a quantized weight takes activations in groups of inputs")
    # Activations in whole rows, or in groups that each meet one scale.
    fits = per_scale >= inputs if group >= inputs else per_scale >= inputs or per_scale % group == 0
    if not fits:
        raise InvalidField("activation_group", group, f"it must divide the weight's group of {per_scale} inputs")
    scale_format = _format_of(codes.scale, "weight.scale")
    has_zeros = codes.zero_point is not None
    return _Layout(codes.name, outputs, inputs, group, per_scale, scale_format, has_zeros, codes.output_scale)


def _pack_codes(codes: _Codes, group: int | None) -> PackedMatrix:
    layout = _layout_of(codes, group)
    rows, scale = _rows_in_memory(codes.rows, "weight.codes"), codes.scale.contiguous()
    zero_point = None if codes.zero_point is None else codes.zero_point.contiguous()
    _check_sizes(codes, rows, scale, zero_point)
    try:
        matrix = PackedMatrix(*layout)
    except ValueError as refused:
        raise InvalidField("weight", f"{codes.scheme} {list(codes.shape)}", str(refused)) from None
    zeros = 0 if zero_point is None else zero_point.data_ptr()
    matrix.fill(rows.data_ptr(), rows.stride(0) * rows.itemsize, scale.data_ptr(), zeros, 0, matrix.tiles)
    return matrix


def _check_sizes(codes: _Codes, rows: Tensor, scale: Tensor, zero_point: Tensor | None) -> None:
    """The C++ side is given addresses: what lies behind them must be as long as the layout says."""
    outputs, inputs = codes.shape
    groups = -(-inputs // codes.inputs_per_scale)
    row_dtype = torch.uint8 if codes.name.startswith("fp4") else torch.int32
    columns = -(-inputs * codes.bits // (8 * row_dtype.itemsize))
    expected = [("words", rows, row_dtype, columns), ("scale", scale, None, groups)]
    if zero_point is not None:
        expected.append(("zero_point", zero_point, torch.int8, groups))
    for name, tensor, dtype, length in expected:
        _check_part(name, tensor, dtype or tensor.dtype, (outputs, length))


def _check_part(name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    if tensor.device.type != "cpu":
        raise InvalidField(f"weight.{name}", str(tensor.device), "native kernels read memory of the cpu")
    if tuple(tensor.shape) != shape or tensor.dtype != dtype:
        given = f"{tensor.dtype} {list(tensor.shape)}"
        raise InvalidField(f"weight.{name}", given, f"the weight's shape and scheme ask for {dtype} {list(shape)}")


def _fp8_layout(weight: QuantizedTensor) -> tuple[int, int, str, int]:
    assert isinstance(weight, FloatTensor)
    return (*weight.shape, str(weight.scheme.format), weight.inputs_per_scale)


def _pack_fp8(weight: QuantizedTensor, group: int | None) -> DenseMatrix:
    assert isinstance(weight, FloatTensor)
    if group is not None:
        raise InvalidField("activation_group", group, "an FP8 weight takes float activations: None")
    layout = _fp8_layout(weight)
    outputs, inputs = weight.shape
    codes, scales = _rows_in_memory(weight.codes, "weight.codes"), weight.row_scales().contiguous()
    _check_part("codes", codes, torch.uint8, (outputs, inputs))
    _check_part("scale", scales, torch.float32, (outputs, -(-inputs // weight.inputs_per_scale)))
    try:
        matrix = DenseMatrix(*layout)
    except ValueError as refused:
        raise InvalidField("weight", f"{weight.scheme} {list(weight.shape)}", str(refused)) from None
    matrix.fill(codes.data_ptr(), codes.stride(0), scales.data_ptr(), 0, matrix.tiles)
    return matrix


def _pack_dense(weight: Tensor, group: int | None) -> DenseMatrix:
    if group is not None:
        raise InvalidField("activation_group", group, "a float weight takes float activations: None")
    if weight.ndim != 2 or weight.device.type != "cpu":
        given = f"{list(weight.shape)} on {weight.device}"
        raise InvalidField("weight", given, "a dense weight is [outputs, inputs] in memory of the cpu")
    rows = _rows_in_memory(weight, "weight")
    outputs, inputs = rows.shape
    matrix = DenseMatrix(outputs, inputs, _format_of(rows, "weight"))
    matrix.fill(rows.data_ptr(), rows.stride(0), 0, 0, matrix.tiles)
    return matrix


def _rows_in_memory(matrix: Tensor, field: str) -> Tensor:
    """The matrix itself where each row is contiguous, whatever lies between rows; otherwise a copy."""
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise InvalidField(field, list(matrix.shape), "a weight has rows and columns")
    return matrix if matrix.stride(1) == 1 else matrix.contiguous()


def _format_of(tensor: Tensor, field: str) -> str:
    if tensor.dtype not in _FORMATS:
        known = ", ".join(str(dtype) for dtype in _FORMATS)
        raise InvalidField(field, str(tensor.dtype), f"native kernels read {known}")
    return _FORMATS[tensor.dtype]
