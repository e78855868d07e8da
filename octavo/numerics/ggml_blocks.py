"""ggml's blocks of 32 weights: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 (docs/quantization.md has the layouts).

`pack_*` lay out codes that are given, so a grid that fits is carried over without a rounding; `quantize` chooses them.
Symmetric types: value = d * code; affine ones: d * code + m; d and m are float16.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.numerics.ggml_fit import fit_scale, fit_scale_and_minimum, importance_weights, inverse
from octavo.numerics.integer import round_half_even_

BLOCK_WEIGHTS = 32
_SPREADS = tuple(step / 10 for step in range(-9, 10))
_LARGEST_HALF = 65504.0


@dataclass(frozen=True, slots=True)
class BlockType:
    """`bits` of a code; an `affine` type has a minimum, and codes from 0; others have codes from `-2^(bits-1)`."""

    bits: int
    affine: bool = False

    @property
    def lowest(self) -> int:
        return 0 if self.affine else -(2 ** (self.bits - 1))

    @property
    def highest(self) -> int:
        return self.lowest + 2**self.bits - 1


BLOCK_TYPES = {
    "Q4_0": BlockType(4),
    "Q4_1": BlockType(4, affine=True),
    "Q5_0": BlockType(5),
    "Q5_1": BlockType(5, affine=True),
    "Q8_0": BlockType(8),
}


def pack(type_name: str, codes: Tensor, scale: Tensor, minimum: Tensor | None = None) -> Tensor:
    """Bytes uint8 `[blocks, block bytes]` of int `codes` `[blocks, 32]` with float16 `scale`, `minimum` `[blocks]`."""
    block_type = BLOCK_TYPES[type_name]
    parts = [half_bytes(scale)]
    if block_type.affine:
        assert minimum is not None
        parts.append(half_bytes(minimum))
    if block_type.bits == 8:
        parts.append(codes.to(torch.int8).view(torch.uint8))
        return torch.cat(parts, dim=-1)
    unsigned = (codes.to(torch.int16) - block_type.lowest).to(torch.uint8)
    if block_type.bits == 5:
        parts.append(_fifth_bits(unsigned >> 4))
    half = BLOCK_WEIGHTS // 2
    parts.append((unsigned[:, :half] & 15) | (unsigned[:, half:] & 15) << 4)
    return torch.cat(parts, dim=-1)


def quantize(type_name: str, blocks: Tensor, importance: Tensor | None) -> Tensor:
    """Bytes of float32 `blocks` `[blocks, 32]`; `importance` `[blocks, 32]` weighs the squared errors."""
    block_type = BLOCK_TYPES[type_name]
    if block_type.bits == 8:  # nothing to win by a search: the largest weight fixes the scale
        scale = to_half(blocks.abs().amax(-1) / block_type.highest)
        return pack(type_name, _nearest(blocks, scale, None, block_type), scale)
    weights = importance_weights(blocks, importance)
    if block_type.affine:
        fitted, low = fit_scale_and_minimum(blocks, weights, block_type.highest, _SPREADS, minimum_below_zero=False)
        scale, minimum = to_half(fitted), to_half(low)
        return pack(type_name, _nearest(blocks, scale, minimum, block_type), scale, minimum)
    scale = to_half(fit_scale(blocks, weights, block_type.lowest, _SPREADS))
    return pack(type_name, _nearest(blocks, scale, None, block_type), scale)


def to_half(values: Tensor) -> Tensor:
    """float16; the caller has checked that weights are within its range."""
    return values.clamp(-_LARGEST_HALF, _LARGEST_HALF).to(torch.float16)


def half_bytes(values: Tensor) -> Tensor:
    """float16 `[blocks]` -> their little-endian bytes `[blocks, 2]`."""
    return values.to(torch.float16).reshape(-1, 1).contiguous().view(torch.uint8)


def _nearest(blocks: Tensor, scale: Tensor, minimum: Tensor | None, block_type: BlockType) -> Tensor:
    shifted = blocks if minimum is None else blocks - minimum.to(torch.float32).unsqueeze(-1)
    return round_half_even_(shifted * inverse(scale).unsqueeze(-1)).clamp_(block_type.lowest, block_type.highest)


def _fifth_bits(bits: Tensor) -> Tensor:
    """0 or 1 `[blocks, 32]` -> a little-endian 32-bit number `[blocks, 4]`, bit i of weight i."""
    powers = 2 ** torch.arange(8, dtype=torch.uint8)
    return (bits.reshape(-1, 4, 8) * powers).sum(-1, dtype=torch.uint8)
