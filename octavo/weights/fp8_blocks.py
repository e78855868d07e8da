"""Scales of FP8 blocks in Hugging Face's fine-grained format: blocks of a config's size <-> ours of 128 x 128.

`weight` float8_e4m3fn `[out, in]`; `weight_scale_inv` float32 `[ceil(out / block), ceil(in / block)]`, which multiplies
in spite of its name (quantization.md 2d).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from octavo.core.errors import CheckpointError
from octavo.numerics.float_scheme import BLOCK, FloatFormat, FloatScheme, Granularity
from octavo.numerics.float_tensor import E8M0_BIAS, FloatTensor

METHOD = "fp8"
WEIGHT, SCALE, INPUT_SCALE = "weight", "weight_scale_inv", "activation_scale"
#: Blocks that are tried, largest first, where 128 does not divide all sizes.
_BLOCKS = (BLOCK, 64, 32, 16)


def common_block(shapes: Iterable[tuple[int, int]]) -> int | None:
    """The largest block that divides all rows and columns; None: no block does."""
    sizes = {size for shape in shapes for size in shape}
    return next((block for block in _BLOCKS if all(size % block == 0 for size in sizes)), None)


def repeat_scales(tensor: FloatTensor, block: int) -> Tensor:
    """Scales of `block` x `block` for a matrix that has them for 128 x 128: the same numbers, some more than once."""
    outputs, inputs = tensor.shape
    scale = tensor.scale.to(torch.float32)
    times = BLOCK // block
    scale = scale.repeat_interleave(times, 0).repeat_interleave(times, 1)
    return scale[: -(-outputs // block), : -(-inputs // block)].contiguous()


def decode_fp8(module: str, weight: Tensor, stored: Tensor, block: tuple[int, int] | None) -> FloatTensor:
    """`block` None: one scale for the matrix. Scales that are equal within 128 x 128 become ours of blocks, others of
    rows and groups. Raises `CheckpointError` naming the tensor whose type or shape is wrong."""
    if weight.dtype != torch.float8_e4m3fn or weight.ndim != 2:
        raise CheckpointError(f"{module}.{WEIGHT}: is {weight.dtype} {list(weight.shape)}, not a matrix of E4M3")
    outputs, inputs = weight.shape
    scale = _as_float(stored)
    codes, shape = weight.view(torch.uint8), (outputs, inputs)
    if block is None or (scale.numel() == 1 and block != (BLOCK, BLOCK)):
        if scale.numel() != 1:
            raise CheckpointError(f"{module}.{SCALE}: is {list(scale.shape)}, not one number")
        return FloatTensor(codes, scale.reshape(1, 1), None, FloatScheme(FloatFormat.E4M3, Granularity.TENSOR), shape)
    rows, columns = block
    wanted = (-(-outputs // rows), -(-inputs // columns))
    if tuple(scale.shape) != wanted:
        raise CheckpointError(
            f"{module}.{SCALE}: is {list(scale.shape)}, but blocks of {list(block)} make {list(wanted)}"
        )
    merged = _merged(scale, block)
    if merged is not None:
        return FloatTensor(codes, merged, None, FloatScheme(FloatFormat.E4M3, Granularity.BLOCK), shape)
    if inputs % columns:
        raise CheckpointError(f"{module}.{WEIGHT}: {inputs} inputs are no multiple of blocks of {list(block)}")
    by_row = scale.repeat_interleave(rows, 0)[:outputs]
    return FloatTensor(codes, by_row, None, FloatScheme(FloatFormat.E4M3, Granularity.GROUP, columns), shape)


def _merged(scale: Tensor, block: tuple[int, int]) -> Tensor | None:
    """Scales of 128 x 128, if those of `block` are the same within each; else None."""
    rows, columns = block
    if BLOCK % rows or BLOCK % columns:
        return None
    down, right = BLOCK // rows, BLOCK // columns
    coarse = scale[::down, ::right].contiguous()
    again = coarse.repeat_interleave(down, 0).repeat_interleave(right, 1)[: scale.shape[0], : scale.shape[1]]
    return coarse if torch.equal(again, scale) else None


def _as_float(stored: Tensor) -> Tensor:
    """Scales of the `ue8m0` kind are exponents of two."""
    if stored.dtype == torch.uint8:
        return torch.exp2(stored.to(torch.float32) - E8M0_BIAS)
    return stored.to(torch.float32)
