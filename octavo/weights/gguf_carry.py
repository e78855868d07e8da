"""Quantized matrices as ggml blocks without a rounding: codes are copied, scales repeated for each block.

A block of 32 weights with a float16 scale can stand for any grid whose groups are multiples of 32, whose scales are
float16 numbers and whose codes, less the zero point, fit the type. So int4 symmetric is Q4_0, int8 is Q8_0, ternary is
TQ2_0, MXFP4 is MXFP4; int4 asymmetric is Q5_0, or Q4_1 where the minima are float16 numbers too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.numerics.float_scheme import MXFP4
from octavo.numerics.float_tensor import FloatTensor
from octavo.numerics.ggml import BLOCK_SIZES
from octavo.numerics.ggml_blocks import BLOCK_TYPES, BLOCK_WEIGHTS, half_bytes, pack
from octavo.numerics.packed_tensor import PackedTensor
from octavo.numerics.quantized_tensor import QuantizedTensor


def carriers(matrix: QuantizedTensor) -> tuple[str, ...]:
    """ggml types that hold `matrix` exactly, smallest first; none: its grid has no equal in ggml."""
    if isinstance(matrix, FloatTensor):
        return ("MXFP4",) if matrix.scheme == MXFP4 else ()
    assert isinstance(matrix, PackedTensor)
    if not _blocks_fit(matrix):
        return ()
    lowest, highest = _code_range(matrix)
    found = [
        name
        for name, kind in BLOCK_TYPES.items()
        if (not kind.affine and kind.lowest <= lowest and highest <= kind.highest)
        or (kind.affine and _minima_fit(matrix, kind.bits))
    ]
    if matrix.scheme.ternary and matrix.shape[1] % BLOCK_SIZES["TQ2_0"][0] == 0:
        found.append("TQ2_0")
    return tuple(sorted(found, key=_bits_per_weight))


def carry(matrix: QuantizedTensor, type_name: str) -> Tensor:
    """Bytes uint8 `[rows, row bytes]` of `matrix`; `type_name` must be among its `carriers`."""
    rows = matrix.shape[0]
    if isinstance(matrix, FloatTensor):
        return _carry_mxfp4(matrix).reshape(rows, -1)
    assert isinstance(matrix, PackedTensor)
    if type_name == "TQ2_0":
        return _carry_ternary(matrix).reshape(rows, -1)
    scale = _block_values(matrix, matrix.scale).reshape(-1)
    if BLOCK_TYPES[type_name].affine:
        minimum = _block_values(matrix, _minima(matrix)).reshape(-1)
        codes = matrix.codes().to(torch.int16) + 2 ** (matrix.scheme.bits - 1)
        return pack(type_name, codes.reshape(-1, BLOCK_WEIGHTS), scale, minimum).reshape(rows, -1)
    return pack(type_name, _centred_codes(matrix).reshape(-1, BLOCK_WEIGHTS), scale).reshape(rows, -1)


def _blocks_fit(matrix: PackedTensor) -> bool:
    columns, num_groups = matrix.shape[1], matrix.scale.shape[1]
    whole_blocks = columns % BLOCK_WEIGHTS == 0 and columns // num_groups % BLOCK_WEIGHTS == 0
    return whole_blocks and _is_half(matrix.scale)


def _code_range(matrix: PackedTensor) -> tuple[int, int]:
    """Lowest and highest code less its zero point; the scheme's own limits where there are no zero points."""
    if matrix.zero_point is None:
        return matrix.scheme.lowest, matrix.scheme.highest
    codes = _centred_codes(matrix)
    return int(codes.min()), int(codes.max())


def _minima_fit(matrix: PackedTensor, bits: int) -> bool:
    return matrix.zero_point is not None and matrix.scheme.bits <= bits and _is_half(_minima(matrix))


def _minima(matrix: PackedTensor) -> Tensor:
    """What the lowest code of each group stands for, float32 `[rows, groups]`."""
    assert matrix.zero_point is not None
    return (matrix.scheme.lowest - matrix.zero_point.to(torch.float32)) * matrix.scale.to(torch.float32)


def _centred_codes(matrix: PackedTensor) -> Tensor:
    """Codes less their zero points, int16 `[rows, columns]`."""
    codes = matrix.codes().to(torch.int16)
    if matrix.zero_point is None:
        return codes
    grouped = codes.reshape(len(codes), matrix.zero_point.shape[1], -1)
    return (grouped - matrix.zero_point.to(torch.int16).unsqueeze(-1)).reshape(codes.shape)


def _block_values(matrix: PackedTensor, by_group: Tensor) -> Tensor:
    """Values `[rows or 1, groups]` -> float16 `[rows, blocks]`."""
    repeats = matrix.shape[1] // by_group.shape[1] // BLOCK_WEIGHTS
    return by_group.to(torch.float16).repeat_interleave(repeats, dim=1).expand(matrix.shape[0], -1)


def _is_half(values: Tensor) -> bool:
    wide = values.to(torch.float32)
    return bool((wide.to(torch.float16).to(torch.float32) == wide).all())


def _bits_per_weight(type_name: str) -> float:
    num_weights, num_bytes = BLOCK_SIZES[type_name]
    return num_bytes / num_weights


def _carry_ternary(matrix: PackedTensor) -> Tensor:
    """TQ2_0: four codes + 1 a byte, weights i, i + 32, i + 64, i + 96 of each half of 256; then the scale."""
    lanes = (matrix.codes() + 1).to(torch.uint8).reshape(-1, 2, 4, 32)
    packed = lanes[:, :, 0] | lanes[:, :, 1] << 2 | lanes[:, :, 2] << 4 | lanes[:, :, 3] << 6
    num_blocks = len(lanes)
    scale = matrix.scale.expand(matrix.shape[0], 1).repeat_interleave(num_blocks // matrix.shape[0], dim=0)
    return torch.cat([packed.reshape(num_blocks, -1), half_bytes(scale)], -1)


def _carry_mxfp4(matrix: FloatTensor) -> Tensor:
    """The exponent, then 16 bytes: codes of the first 16 weights in the low nibbles, of the others in the high."""
    nibbles = torch.stack((matrix.codes & 15, matrix.codes >> 4), dim=-1).reshape(-1, 2, 16)
    return torch.cat([matrix.scale.reshape(-1, 1), nibbles[:, 0] | nibbles[:, 1] << 4], -1)
