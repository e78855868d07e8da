"""ggml's storage types: their sizes, and matrices as bytes of one of them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from octavo.core.errors import InvalidField
from octavo.numerics import ggml_blocks, ggml_super_blocks
from octavo.numerics.ggml_blocks import BLOCK_TYPES
from octavo.numerics.ggml_super_blocks import SUPER_BLOCK_TYPES

#: type -> (weights, bytes) of a block.
BLOCK_SIZES = {
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q8_0": (32, 34),
    "Q2_K": (256, 84),
    "Q3_K": (256, 110),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
    "TQ2_0": (256, 66),
    "MXFP4": (32, 17),
}
PLAIN_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
#: Types that weights can be rounded to; into the others a matrix on the very grid may be carried.
ROUNDED_TYPES = (*PLAIN_DTYPES, *BLOCK_TYPES, *SUPER_BLOCK_TYPES)
_LARGEST_HALF = 65504.0
#: Weights searched at once: temporaries stay in cache, and torch keeps to one thread (see `numerics.integer`).
_CHUNK_WEIGHTS = 30_720


def stored_bytes(type_name: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor of that shape. Raises `InvalidField` if its rows are not whole blocks."""
    block_weights, block_bytes = BLOCK_SIZES[type_name]
    if shape and shape[-1] % block_weights:
        raise InvalidField("type", type_name, f"rows of {shape[-1]} are not whole blocks of {block_weights}")
    return math.prod(shape) // block_weights * block_bytes


def quantize_matrix(matrix: Tensor, type_name: str, importance: Tensor | None = None) -> Tensor:
    """Bytes uint8 `[rows, row bytes]` of `matrix` `[rows, columns]`, in float32 or less.

    `importance` `[columns]` is the mean square of each input: it weighs the squared errors. A block through which
    nothing flows (all zero or not finite) weighs evenly. Raises `InvalidField` for NaN, infinity and what float16
    cannot hold, naming the value.
    """
    rows, columns = matrix.shape
    if type_name not in ROUNDED_TYPES:
        raise InvalidField("type", type_name, f"weights are rounded to {', '.join(ROUNDED_TYPES)}")
    row_bytes = stored_bytes(type_name, (columns,))
    wide = matrix.to(torch.float32)
    _check_range(wide, type_name)
    if type_name in PLAIN_DTYPES:
        return wide.to(PLAIN_DTYPES[type_name]).contiguous().view(torch.uint8)
    block_weights = BLOCK_SIZES[type_name][0]
    room = ggml_blocks if type_name in BLOCK_TYPES else ggml_super_blocks
    weights = None if importance is None else _block_importance(importance, block_weights)
    packed = torch.empty(rows, row_bytes, dtype=torch.uint8)
    step = max(1, _CHUNK_WEIGHTS // columns)
    for first in range(0, rows, step):
        chunk = wide[first : first + step]
        blocks = chunk.reshape(-1, block_weights)
        chunk_weights = None if weights is None else weights.repeat(len(chunk), 1)
        packed[first : first + step] = room.quantize(type_name, blocks, chunk_weights).reshape(len(chunk), row_bytes)
    return packed


def _block_importance(importance: Tensor, block_weights: int) -> Tensor:
    """`[blocks of a row, block_weights]`, each block scaled to mean 1."""
    blocks = importance.to(torch.float32).reshape(-1, block_weights)
    mean = blocks.mean(-1, keepdim=True)
    usable = mean.isfinite() & (mean > 0)
    return torch.where(usable, blocks / torch.where(usable, mean, 1.0), 1.0)


def _check_range(matrix: Tensor, type_name: str) -> None:
    if not bool(torch.isfinite(matrix).all()):
        raise InvalidField("weight", "inf or nan", "weights must be finite to be stored")
    if type_name in ("F32", "BF16") or not matrix.numel():
        return
    largest = float(matrix.abs().max())
    # A scale is at most the largest weight.
    if largest > _LARGEST_HALF:
        raise InvalidField("type", type_name, f"a weight of {largest:.6g} is beyond float16; store it as BF16 or F32")
