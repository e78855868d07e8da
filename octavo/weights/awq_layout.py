"""One linear's stored tensors <-> `PackedTensor`, as AutoAWQ's GEMM checkpoints have them (quantization.md 2b).

`qweight` int32 `[in, out / 8]`: eight outputs a word, in an order of their own. `qzeros` int32 `[groups, out / 8]`
likewise, true zeros. `scales` float16 `[groups, out]`. value = scale * (code - zero), four bits, unsigned.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from octavo.core.errors import CheckpointError, InvalidField
from octavo.numerics.packed_tensor import PackedTensor
from octavo.numerics.packing import pack_codes, unpack_codes
from octavo.numerics.scheme import IntegerScheme

QWEIGHT, QZEROS, SCALES = "qweight", "qzeros", "scales"
BITS = 4
CODES_IN_WORD = 8
#: Nibble i of a word holds output ORDER[i] of its eight; the inverse is where each output is found.
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
INVERSE_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)


def encode_awq(packed: PackedTensor) -> dict[str, Tensor]:
    """Stored tensors of one linear of 4 bits by their local names; scales keep their dtype. A symmetric one gets the
    zero point 8 that its codes are about."""
    zero_point = packed.zero_point
    if zero_point is None:
        zero_point = torch.zeros(packed.scale.shape, dtype=torch.int8)
    return {
        QWEIGHT: pack_codes(_reordered(packed.codes().T, ORDER), BITS),
        QZEROS: pack_codes(_reordered(zero_point.T, ORDER), BITS),
        SCALES: packed.scale.T.contiguous(),
    }


def decode_awq(module: str, parts: Mapping[str, Tensor], group_size: int) -> PackedTensor:
    """The inverse of `encode_awq`; zero points that are all 8 make a symmetric one. `group_size` -1 is all inputs.

    Raises `CheckpointError` naming the tensor whose shape or type is wrong.
    """
    qweight = parts[QWEIGHT]
    if qweight.ndim != 2 or qweight.dtype != torch.int32:
        raise CheckpointError(f"{module}.{QWEIGHT}: is {qweight.dtype} {list(qweight.shape)}, not a matrix of words")
    inputs, outputs = qweight.shape[0], qweight.shape[1] * CODES_IN_WORD
    zero_point = decode_zeros(module, parts[QZEROS], outputs)
    try:
        scheme = IntegerScheme(BITS, None if group_size == -1 else group_size, symmetric=not bool(zero_point.any()))
        groups = scheme.num_groups(inputs)
    except InvalidField as error:
        raise CheckpointError(f"{module}: {error}") from error
    for part, columns in ((QZEROS, outputs // CODES_IN_WORD), (SCALES, outputs)):
        if tuple(parts[part].shape) != (groups, columns):
            raise CheckpointError(f"{module}.{part}: is {list(parts[part].shape)}, not {[groups, columns]}")
    if not parts[SCALES].is_floating_point():
        raise CheckpointError(f"{module}.{SCALES}: has dtype {parts[SCALES].dtype}, not a floating-point one")
    codes = _reordered(unpack_codes(qweight, BITS, outputs), INVERSE_ORDER).T.contiguous()
    scale = parts[SCALES].T.contiguous()
    return PackedTensor.from_codes(codes, scale, None if scheme.symmetric else zero_point, scheme)


def decode_zeros(module: str, words: Tensor, outputs: int) -> Tensor:
    """Signed int8 zero points `[outputs, groups]`."""
    if words.ndim != 2 or words.dtype != torch.int32 or words.shape[1] * CODES_IN_WORD != outputs:
        raise CheckpointError(f"{module}.{QZEROS}: is {words.dtype} {list(words.shape)} beside {outputs} outputs")
    return _reordered(unpack_codes(words, BITS, outputs), INVERSE_ORDER).T.contiguous()


def _reordered(codes: Tensor, order: tuple[int, ...]) -> Tensor:
    """Columns of each eight taken in this order."""
    return codes.reshape(codes.shape[0], -1, CODES_IN_WORD)[..., list(order)].reshape(codes.shape[0], -1)
