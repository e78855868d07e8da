"""Weights into the kernels' layout (`native/kernels/packed_weight.hpp`)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from octavo.core.errors import InvalidField
from octavo.numerics.packed_tensor import PackedTensor
from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.ops.native._kernels import DenseMatrix, PackedMatrix

#: Inputs between float rescales where the weight's own groups are larger, or a row is one.
LARGEST_ACTIVATION_GROUP = 64

_FORMATS = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


def activation_group(weight: Tensor | QuantizedTensor) -> int | None:
    """Inputs that share one scale of the int8 activations which `weight` multiplies; None: it takes floats.

    The weight's own group up to 64 inputs, otherwise 64.
    """
    if isinstance(weight, Tensor):
        return None
    if not isinstance(weight, PackedTensor):
        raise InvalidField("weight", str(weight.scheme), "the native executor has no kernel for it yet")
    return min(weight.scheme.group_size or LARGEST_ACTIVATION_GROUP, LARGEST_ACTIVATION_GROUP)


def pack(weight: Tensor | QuantizedTensor, activation_group: int | None) -> PackedMatrix | DenseMatrix:
    """A weight `[outputs, inputs]` as a matrix that owns its memory; the source is only read, and once.

    A `PackedTensor` becomes a `PackedMatrix` for activations in groups of `activation_group` inputs, a float tensor
    (float32, bfloat16, float16) a `DenseMatrix` with the same values for float activations: give None then. Works
    while other threads run Python.

    Raises `InvalidField` for a weight on another device, of another dtype, or with groups that activations in groups
    of `activation_group` do not divide.
    """
    if isinstance(weight, Tensor):
        return _pack_dense(weight, activation_group)
    if not isinstance(weight, PackedTensor):
        raise InvalidField("weight", str(weight.scheme), "the native executor has no kernel for it yet")
    return _pack_codes(weight, activation_group)


def packed_bytes(weight: Tensor | QuantizedTensor) -> int:
    """Bytes of `pack(weight, activation_group(weight))`, without packing it. Raises `InvalidField` as `pack` does."""
    if isinstance(weight, Tensor):
        outputs, inputs = weight.shape
        return DenseMatrix.bytes_of(outputs, inputs, _format_of(weight, "weight"))
    if not isinstance(weight, PackedTensor):
        raise InvalidField("weight", str(weight.scheme), "the native executor has no kernel for it yet")
    return PackedMatrix.bytes_of(*_layout_of(weight, activation_group(weight)))


class _Layout(NamedTuple):
    """What `PackedMatrix` is made with, in its order."""

    bits: int
    outputs: int
    inputs: int
    group: int
    inputs_per_scale: int
    scale_format: str
    has_zeros: bool


def _layout_of(weight: PackedTensor, group: int | None) -> _Layout:
    outputs, inputs = weight.shape
    per_scale = weight.scheme.group_size or inputs
    if group is None or group < 1:
        raise InvalidField("activation_group", group, "a quantized weight takes activations in groups of inputs")
    # Activations in whole rows, or in groups that each meet one scale.
    fits = per_scale >= inputs if group >= inputs else per_scale >= inputs or per_scale % group == 0
    if not fits:
        raise InvalidField("activation_group", group, f"it must divide the weight's group of {per_scale} inputs")
    scale_format = _format_of(weight.scale, "weight.scale")
    has_zeros = weight.zero_point is not None
    return _Layout(weight.scheme.bits, outputs, inputs, group, per_scale, scale_format, has_zeros)


def _pack_codes(weight: PackedTensor, group: int | None) -> PackedMatrix:
    layout = _layout_of(weight, group)
    words, scale = _rows_in_memory(weight.words, "weight.words"), weight.scale.contiguous()
    zero_point = None if weight.zero_point is None else weight.zero_point.contiguous()
    _check_sizes(layout, words, scale, zero_point)
    try:
        matrix = PackedMatrix(*layout)
    except ValueError as refused:
        raise InvalidField("weight", f"{weight.scheme} {list(weight.shape)}", str(refused)) from None
    zeros = 0 if zero_point is None else zero_point.data_ptr()
    matrix.fill(words.data_ptr(), words.stride(0) * 4, scale.data_ptr(), zeros, 0, matrix.tiles)
    return matrix


def _check_sizes(layout: _Layout, words: Tensor, scale: Tensor, zero_point: Tensor | None) -> None:
    """The C++ side is given addresses: what lies behind them must be as long as the layout says."""
    groups = -(-layout.inputs // layout.inputs_per_scale)
    expected = [("words", words, torch.int32, -(-layout.inputs * layout.bits // 32)), ("scale", scale, None, groups)]
    if zero_point is not None:
        expected.append(("zero_point", zero_point, torch.int8, groups))
    for name, tensor, dtype, columns in expected:
        if tensor.device.type != "cpu":
            raise InvalidField(f"weight.{name}", str(tensor.device), "native kernels read memory of the cpu")
        if tuple(tensor.shape) != (layout.outputs, columns) or (dtype is not None and tensor.dtype != dtype):
            given = f"{tensor.dtype} {list(tensor.shape)}"
            wanted = f"{dtype or tensor.dtype} [{layout.outputs}, {columns}]"
            raise InvalidField(f"weight.{name}", given, f"the weight's shape and scheme ask for {wanted}")


def _pack_dense(weight: Tensor, group: int | None) -> DenseMatrix:
    if group is not None:
        raise InvalidField("activation_group", group, "a float weight takes float activations: None")
    if weight.ndim != 2 or weight.device.type != "cpu":
        given = f"{list(weight.shape)} on {weight.device}"
        raise InvalidField("weight", given, "a dense weight is [outputs, inputs] in memory of the cpu")
    rows = _rows_in_memory(weight, "weight")
    outputs, inputs = rows.shape
    matrix = DenseMatrix(outputs, inputs, _format_of(rows, "weight"))
    matrix.fill(rows.data_ptr(), rows.stride(0), 0, matrix.tiles)
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
