"""ggml's K-quants: super-blocks of 256 weights, whose sub-blocks have scales that are integers themselves.

Symmetric types (Q3_K, Q6_K): value = d * scale * code, 16 sub-blocks of 16. Affine ones (Q2_K: 16 of 16; Q4_K, Q5_K:
8 of 32): value = d * scale * code - dmin * minimum. The scales are fitted sub-block by sub-block, rounded to integers,
then improved by trying their neighbours with the codes those would give; codes are rounded last.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.numerics.ggml_blocks import to_half
from octavo.numerics.ggml_fit import fit_scale, fit_scale_and_minimum, importance_weights, inverse
from octavo.numerics.ggml_super_block_layout import pack_affine, pack_symmetric
from octavo.numerics.integer import round_half_even_

SUPER_BLOCK_WEIGHTS = 256


@dataclass(frozen=True, slots=True)
class SuperBlockType:
    """`scale_bits` of a sub-block's scale: signed for symmetric types, unsigned for affine ones."""

    bits: int
    sub_block_weights: int
    scale_bits: int
    affine: bool
    spreads: tuple[float, ...]


def _spreads(first: float, last: float, count: int) -> tuple[float, ...]:
    return tuple(first + (last - first) * index / (count - 1) for index in range(count))


SUPER_BLOCK_TYPES = {
    "Q2_K": SuperBlockType(2, 16, 4, True, _spreads(-0.5, 1.0, 16)),
    "Q3_K": SuperBlockType(3, 16, 6, False, _spreads(-0.9, 0.9, 19)),
    "Q4_K": SuperBlockType(4, 32, 6, True, _spreads(-1.0, 1.0, 21)),
    "Q5_K": SuperBlockType(5, 32, 6, True, _spreads(-0.8, 0.8, 17)),
    "Q6_K": SuperBlockType(6, 16, 8, False, _spreads(-0.9, 0.9, 19)),
}


def quantize(type_name: str, blocks: Tensor, importance: Tensor | None) -> Tensor:
    """Bytes uint8 `[blocks, block bytes]` of float32 `blocks` `[blocks, 256]`, `importance` alike or None."""
    kind = SUPER_BLOCK_TYPES[type_name]
    width = kind.sub_block_weights
    groups = blocks.reshape(-1, SUPER_BLOCK_WEIGHTS // width, width)
    grouped = None if importance is None else importance.reshape(groups.shape)
    weights = importance_weights(groups, grouped)
    if kind.affine:
        return pack_affine(type_name, *_affine(kind, groups, weights))
    return pack_symmetric(type_name, *_symmetric(kind, groups, weights))


def _symmetric(kind: SuperBlockType, groups: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`d` float16 `[blocks]`, `scales` `[blocks, groups]`, `codes` `[blocks, groups, width]`, both signed."""
    lowest, lowest_scale = -(2 ** (kind.bits - 1)), -(2 ** (kind.scale_bits - 1))
    fitted = _by_group(fit_scale(_flat(groups), _flat(weights), lowest, kind.spreads), groups)
    extreme = fitted.gather(-1, fitted.abs().argmax(-1, keepdim=True)).squeeze(-1)
    d = to_half(extreme / lowest_scale)
    wide = d.to(torch.float32).unsqueeze(-1)
    best = _clamped(fitted * inverse(wide), lowest_scale, -lowest_scale - 1)

    def codes_of(scales: Tensor) -> Tensor:
        step = inverse(wide * scales).unsqueeze(-1)
        return round_half_even_(groups * step).clamp_(lowest, -lowest - 1)

    def error_of(scales: Tensor) -> Tensor:
        values = codes_of(scales).mul_((wide * scales).unsqueeze(-1))
        return values.sub_(groups).square_().mul_(weights).sum(-1)

    best_error = error_of(best)
    for shift in (-1, 1):
        scales = (best + shift).clamp_(lowest_scale, -lowest_scale - 1)
        error = error_of(scales)
        better = error < best_error
        best, best_error = torch.where(better, scales, best), torch.where(better, error, best_error)
    return d, best, codes_of(best)


def _affine(kind: SuperBlockType, groups: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`d`, `dmin` float16 `[blocks]`, `scales`, `minima` `[blocks, groups]`, `codes` `[blocks, groups, width]`."""
    highest, highest_scale = 2**kind.bits - 1, 2**kind.scale_bits - 1
    fit = fit_scale_and_minimum(_flat(groups), _flat(weights), highest, kind.spreads, minimum_below_zero=True)
    scale, below = _by_group(fit[0], groups), -_by_group(fit[1], groups)
    d, dmin = to_half(scale.amax(-1) / highest_scale), to_half(below.amax(-1) / highest_scale)
    step, min_step = d.to(torch.float32).unsqueeze(-1), dmin.to(torch.float32).unsqueeze(-1)
    sum_w, sum_wx = weights.sum(-1), (weights * groups).sum(-1)

    def codes_of(scales: Tensor, minima: Tensor) -> Tensor:
        shifted = groups + (min_step * minima).unsqueeze(-1)
        return round_half_even_(shifted.mul_(inverse(step * scales).unsqueeze(-1))).clamp_(0, highest)

    def best_minima(codes: Tensor, scales: Tensor) -> Tensor:
        mean = ((weights * codes).sum(-1) * (step * scales) - sum_wx) / sum_w.clamp_min(1e-30)
        return _clamped(mean * inverse(min_step), 0, highest_scale)

    def error_of(codes: Tensor, scales: Tensor, minima: Tensor) -> Tensor:
        values = codes * (step * scales).unsqueeze(-1) - (min_step * minima).unsqueeze(-1)
        return values.sub_(groups).square_().mul_(weights).sum(-1)

    best = _clamped(scale * inverse(step), 0, highest_scale)
    best_minimum = _clamped(below * inverse(min_step), 0, highest_scale)
    best_error = error_of(codes_of(best, best_minimum), best, best_minimum)
    for shift in (0, -1, 1):
        scales = (best + shift).clamp_(0, highest_scale)
        minima = best_minima(codes_of(scales, best_minimum), scales)
        error = error_of(codes_of(scales, minima), scales, minima)
        better = error < best_error
        best = torch.where(better, scales, best)
        best_minimum = torch.where(better, minima, best_minimum)
        best_error = torch.where(better, error, best_error)
    return d, dmin, best, best_minimum, codes_of(best, best_minimum)


def _flat(groups: Tensor) -> Tensor:
    return groups.reshape(-1, groups.shape[-1])


def _by_group(values: Tensor, groups: Tensor) -> Tensor:
    return values.reshape(groups.shape[:-1])


def _clamped(values: Tensor, lowest: int, highest: int) -> Tensor:
    return round_half_even_(values.clone()).clamp_(lowest, highest)
