"""Rounding to an integer grid: which scale and zero point, then which codes.

Scales are rounded to the dtype they will be stored in before any code is chosen, so a code always answers to the
grid the reader will see. Sources: full-range symmetric after AutoRound (quantization.md 3.5), shrink search after
the GPTQ code (3.1).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.core.errors import InvalidField
from octavo.numerics.scheme import IntegerScheme

#: Elements searched at once: temporaries stay in cache, and torch does not split an operation below 32,768 elements
#: over threads, whose meeting costs more than the work (50 times more where other processes want the cores).
_CHUNK_ELEMENTS = 30_000
_NO_FRACTION = 1.5 * 2**23
#: Smallest share of the min-max range the search tries, by bits: fewer bits want more clipping.
_SHRINK_FLOOR = {2: 0.35, 3: 0.45, 4: 0.55, 8: 0.9}
_SHRINK_STEPS = {2: 10, 3: 8, 4: 7, 8: 2}
#: Then, around the best one, these shares of a step.
_FINE_SHARES = (-0.6, -0.3, 0.3, 0.6)


@dataclass(frozen=True, slots=True)
class Grid:
    """The representable values of every group: `(code - zero_point) * scale`.

    `scale` `[rows, groups]` in storage dtype, never zero; `zero_point` int8 `[rows, groups]`, None if symmetric.
    """

    scale: Tensor
    zero_point: Tensor | None


@dataclass(frozen=True, slots=True)
class Encoded:
    """Signed int8 `codes` `[rows, columns]` on a grid."""

    codes: Tensor
    scale: Tensor
    zero_point: Tensor | None


def encode(
    weight: Tensor,
    scheme: IntegerScheme,
    *,
    scale_dtype: torch.dtype = torch.float16,
    search: bool = True,
    importance: Tensor | None = None,
) -> Encoded:
    """Nearest codes of `weight` `[rows, columns]` on the grid `choose_grid` finds.

    Raises `InvalidField` if the group size does not divide the columns, if a weight is not finite, or if a scale
    overflows `scale_dtype`.
    """
    grid = choose_grid(weight, scheme, scale_dtype=scale_dtype, search=search, importance=importance)
    codes = round_to_grid(weight, grid, scheme)
    return Encoded(codes, grid.scale, grid.zero_point)


def choose_grid(
    weight: Tensor,
    scheme: IntegerScheme,
    *,
    scale_dtype: torch.dtype = torch.float16,
    search: bool = True,
    importance: Tensor | None = None,
) -> Grid:
    """Scale and zero point of each group of `weight` `[rows, columns]`.

    Without `search`: min-max. With it: the candidate of least squared error, over ranges shrunk step by step and, for
    symmetric schemes, over both signs of the scale. `importance` `[columns]` (a Hessian's diagonal) weighs the
    squared errors. A group of zeros has scale 1 and zero point 0.
    """
    rows, columns = weight.shape
    num_groups = scheme.num_groups(columns)
    if not bool(torch.isfinite(weight).all()):
        raise InvalidField("weight", "inf or nan", "weights must be finite to be quantized")
    weights = None if importance is None else _group_importance(importance, num_groups)
    scales, zeros = [], []
    step = max(1, _CHUNK_ELEMENTS // columns)
    for start in range(0, rows, step):
        groups = weight[start : start + step].to(torch.float32).reshape(-1, num_groups, columns // num_groups)
        scale, zero = _search(groups, scheme, scale_dtype, weights) if search else _min_max(groups, scheme, scale_dtype)
        scales.append(scale)
        zeros.append(zero)
    scale = torch.cat(scales)
    if scheme.symmetric:
        return Grid(scale, None)
    return Grid(scale, torch.cat(zeros).to(torch.int8))


def round_to_grid(weight: Tensor, grid: Grid, scheme: IntegerScheme) -> Tensor:
    """Signed int8 codes `[rows, columns]`: the nearest point of each group's grid, ties to even."""
    rows, columns = weight.shape
    groups = weight.to(torch.float32).reshape(rows, grid.scale.shape[1], -1)
    zero = None if grid.zero_point is None else grid.zero_point.to(torch.float32)
    return _codes(groups, grid.scale.to(torch.float32), zero, scheme).to(torch.int8).reshape(rows, columns)


def round_half_even_(x: Tensor) -> Tensor:
    """Round float32 `x` in place, ties to even: adding 1.5 * 2^23 leaves no bits for a fraction. Exact below 2^22, and
    beyond it any code is clamped. (torch's own `round_` splits every 2,048 elements over threads.)"""
    return x.add_(_NO_FRACTION).sub_(_NO_FRACTION)


def to_storage(scale: Tensor, scale_dtype: torch.dtype) -> Tensor:
    """Scales rounded to `scale_dtype`; one that would vanish becomes the smallest number that dtype can hold.

    Raises `InvalidField` on overflow: no code could repair an infinite scale.
    """
    stored = scale.to(scale_dtype)
    if not bool(torch.isfinite(stored).all()):
        largest = float(scale.abs().max())
        expected = f"a group needs a scale of {largest:.3g}; use bfloat16 or float32 scales"
        raise InvalidField("scale_dtype", str(scale_dtype).removeprefix("torch."), expected)
    smallest = torch.finfo(scale_dtype).smallest_normal
    if scale_dtype in (torch.float16, torch.bfloat16):
        smallest *= torch.finfo(scale_dtype).eps
    tiny = torch.full_like(stored, smallest)
    return torch.where(stored == 0, torch.where(scale < 0, -tiny, tiny), stored)


def _group_importance(importance: Tensor, num_groups: int) -> Tensor:
    """`[1, groups, group size]`, each group scaled to mean 1; a group nothing flows through weighs evenly."""
    grouped = importance.to(torch.float32).reshape(1, num_groups, -1)
    mean = grouped.mean(-1, keepdim=True)
    return torch.where(mean > 0, grouped / mean.clamp_min(torch.finfo(torch.float32).tiny), torch.ones_like(grouped))


def _codes(groups: Tensor, scale: Tensor, zero: Tensor | None, scheme: IntegerScheme) -> Tensor:
    codes = round_half_even_(torch.div(groups, scale.unsqueeze(-1)))
    if zero is not None:
        codes += zero.unsqueeze(-1)
    return codes.clamp_(scheme.lowest, scheme.highest)


def _range(groups: Tensor, scheme: IntegerScheme) -> tuple[Tensor, Tensor]:
    """(low, high) `[rows, groups]` of the weights, zero included: zero itself stays representable."""
    return groups.amin(-1).clamp_max_(0), groups.amax(-1).clamp_min_(0)


def _symmetric_scale(low: Tensor, high: Tensor, scheme: IntegerScheme) -> Tensor:
    """The element of largest magnitude maps to the lowest code: its sign goes into the scale."""
    extreme = torch.where(high > -low, high, low)
    return extreme / scheme.lowest


def _candidate(
    low: Tensor, high: Tensor, factor: Tensor, scheme: IntegerScheme, scale_dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Storage-rounded scale and zero point (float32 whole numbers) for the range times |factor|; a negative factor
    is the other sign of a symmetric scale."""
    empty = high == low
    if scheme.symmetric:
        scale = torch.where(empty, 1.0, _symmetric_scale(low, high, scheme) * factor)
        return to_storage(scale, scale_dtype), torch.zeros_like(scale)
    scale = torch.where(empty, 1.0, (high - low) * (factor / (scheme.highest - scheme.lowest)))
    stored = to_storage(scale, scale_dtype)
    zero = (scheme.lowest - low * factor / stored.to(torch.float32)).round_()
    zero = torch.where(empty, 0.0, zero.clamp_(scheme.lowest, scheme.highest))
    return stored, zero


def _min_max(groups: Tensor, scheme: IntegerScheme, scale_dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    low, high = _range(groups, scheme)
    return _candidate(low, high, torch.ones_like(low), scheme, scale_dtype)


def _coarse_factors(scheme: IntegerScheme) -> tuple[list[float], float]:
    """Factors of the range and their spacing. Symmetric grids also try the other sign, from wide enough that the
    largest element still has a code of its own there."""
    floor, steps = _SHRINK_FLOOR[scheme.bits], _SHRINK_STEPS[scheme.bits]
    spacing = (1.0 - floor) / steps
    shrink = [1.0 - spacing * step for step in range(1, steps + 1)]
    if not scheme.symmetric:
        return shrink, spacing
    widest = scheme.lowest / -scheme.highest
    other = [-(widest - spacing * step) for step in range(int((widest - floor) / spacing) + 1)]
    return shrink + other, spacing


class _Best:
    """The best candidate so far of every group; min-max comes first and wins ties."""

    def __init__(self, groups: Tensor, scheme: IntegerScheme, scale_dtype: torch.dtype, weights: Tensor | None) -> None:
        self.groups, self.scheme, self.scale_dtype, self.weights = groups, scheme, scale_dtype, weights
        self.low, self.high = _range(groups, scheme)
        self.factor = torch.ones_like(self.low)
        self.scale, self.zero = _candidate(self.low, self.high, self.factor, scheme, scale_dtype)
        self.error = _error(groups, self.scale, self.zero, scheme, weights)

    def consider(self, factor: Tensor) -> None:
        scale, zero = _candidate(self.low, self.high, factor, self.scheme, self.scale_dtype)
        error = _error(self.groups, scale, zero, self.scheme, self.weights)
        better = error < self.error
        self.error = torch.where(better, error, self.error)
        self.factor = torch.where(better, factor, self.factor)
        self.scale = torch.where(better, scale, self.scale)
        self.zero = torch.where(better, zero, self.zero)


def _search(
    groups: Tensor, scheme: IntegerScheme, scale_dtype: torch.dtype, weights: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Coarse steps over the whole span, then finer ones around each group's best."""
    best = _Best(groups, scheme, scale_dtype, weights)
    factors, spacing = _coarse_factors(scheme)
    for factor in factors:
        best.consider(torch.full_like(best.factor, factor))
    centre = best.factor
    for share in _FINE_SHARES:
        best.consider(centre + spacing * share)
    return best.scale, best.zero


def _error(groups: Tensor, scale: Tensor, zero: Tensor, scheme: IntegerScheme, weights: Tensor | None) -> Tensor:
    """Squared error of each group `[rows, groups]`."""
    wide = scale.to(torch.float32)
    offset = None if scheme.symmetric else zero
    difference = _codes(groups, wide, offset, scheme)
    if offset is not None:
        difference -= offset.unsqueeze(-1)
    difference.mul_(wide.unsqueeze(-1)).sub_(groups).square_()
    if weights is not None:
        difference *= weights
    return difference.sum(-1)
