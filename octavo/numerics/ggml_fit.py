"""Fitting one scale, or a scale and a minimum, to each block of weights by weighted least squares.

Whatever the codes, the best scale (and minimum) for them is a small linear system; so a search needs only candidate
codes. They come from rounding with inverse scales around the min-max one, as llama.cpp's K-quants do (I. Kawrakow
2023), and a last rounding with the fitted scale (Lloyd's iteration), which never hurts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from octavo.numerics.integer import round_half_even_

_TINY = 1e-30


def inverse(scale: Tensor) -> Tensor:
    """1 / scale in float32, 0 where it is 0: every code is 0 there."""
    wide = scale.to(torch.float32)
    return torch.where(wide == 0, 0.0, 1.0 / torch.where(wide == 0, 1.0, wide))


def importance_weights(blocks: Tensor, importance: Tensor | None) -> Tensor:
    """Weights of squared errors `[blocks, n]`: large weights matter more, and inputs by their mean square
    `importance` `[blocks or 1, n]` where it is known."""
    mean_square = blocks.square().mean(-1, keepdim=True)
    if importance is None:
        return mean_square.sqrt() + blocks.abs()
    return importance * (mean_square + blocks.square()).sqrt()


def fit_scale(blocks: Tensor, weights: Tensor, lowest: int, spreads: Sequence[float]) -> Tensor:
    """Scales `[blocks]` of least weighted error for codes in `[lowest, -lowest - 1]`; they may be negative.

    `spreads`: candidates map the weight of largest magnitude to `lowest + spread`, and to its mirror image.
    """
    extreme = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True))
    inverse_extreme = inverse(extreme)
    weighted = weights * blocks
    best_gain = torch.zeros_like(extreme)
    best_scale = torch.zeros_like(extreme)
    factors = [lowest + spread for spread in spreads]
    factors += [-factor - 1 for factor in factors]

    def consider(inverse_scale: Tensor) -> None:
        nonlocal best_gain, best_scale
        codes = round_half_even_(blocks * inverse_scale).clamp_(lowest, -lowest - 1)
        along = (weighted * codes).sum(-1, keepdim=True)
        energy = (weights * codes.square_()).sum(-1, keepdim=True).clamp_min_(_TINY)
        gain = along * along / energy
        better = gain > best_gain
        best_gain = torch.where(better, gain, best_gain)
        best_scale = torch.where(better, along / energy, best_scale)

    for factor in factors:
        consider(inverse_extreme * factor)
    consider(inverse(best_scale))
    return best_scale.squeeze(-1)


def fit_scale_and_minimum(
    blocks: Tensor, weights: Tensor, highest: int, spreads: Sequence[float], minimum_below_zero: bool
) -> tuple[Tensor, Tensor]:
    """`scale`, `minimum` `[blocks]` of least weighted error for `scale * code + minimum`, codes in `[0, highest]`.

    `spreads`: candidates map the block's range to `highest + spread` steps. With `minimum_below_zero` the minimum is
    at most zero (K-quants store its negative without a sign).
    """
    fit = _AffineFit(blocks, weights, highest, minimum_below_zero)
    low = blocks.amin(-1, keepdim=True)
    if minimum_below_zero:
        low = low.clamp_max(0.0)
    span = (blocks.amax(-1, keepdim=True) - low).clamp_min(_TINY)
    for spread in spreads:
        fit.consider((highest + spread) / span, low)
    for _ in range(2):
        fit.consider(inverse(fit.scale), fit.minimum)
    return fit.scale.squeeze(-1), fit.minimum.squeeze(-1)


class _AffineFit:
    """The best scale and minimum so far of every block."""

    def __init__(self, blocks: Tensor, weights: Tensor, highest: int, minimum_below_zero: bool) -> None:
        self.blocks, self.weights, self.highest = blocks, weights, highest
        self.minimum_below_zero = minimum_below_zero
        self.weighted = weights * blocks
        self.sum_w = weights.sum(-1, keepdim=True)
        self.sum_wx = self.weighted.sum(-1, keepdim=True)
        mean = self.sum_wx / self.sum_w.clamp_min(_TINY)
        self.minimum = mean.clamp_max(0.0) if minimum_below_zero else mean
        self.scale = torch.zeros_like(mean)
        # A gain is the sum of weighted squares less the squared error.
        self.gain = self.minimum * (2 * self.sum_wx - self.minimum * self.sum_w)

    def consider(self, inverse_scale: Tensor, low: Tensor) -> None:
        codes = round_half_even_((self.blocks - low).mul_(inverse_scale)).clamp_(0, self.highest)
        sum_xq = (self.weighted * codes).sum(-1, keepdim=True)
        weighted_codes = self.weights * codes
        sum_q = weighted_codes.sum(-1, keepdim=True)
        sum_qq = weighted_codes.mul_(codes).sum(-1, keepdim=True)
        determinant = self.sum_w * sum_qq - sum_q * sum_q
        solvable = determinant > 1e-6 * self.sum_w * sum_qq
        safe = torch.where(solvable, determinant, 1.0)
        # Where one weight is all that counts there is no system to solve: the candidate stands as it is.
        scale = torch.where(solvable, (self.sum_w * sum_xq - self.sum_wx * sum_q) / safe, inverse(inverse_scale))
        minimum = torch.where(solvable, (sum_qq * self.sum_wx - sum_q * sum_xq) / safe, low)
        if self.minimum_below_zero:
            through_zero = minimum > 0
            scale = torch.where(through_zero, sum_xq / sum_qq.clamp_min(_TINY), scale)
            minimum = minimum.clamp_max(0.0)
        gain = 2 * (scale * sum_xq + minimum * self.sum_wx) - (
            scale * scale * sum_qq + 2 * scale * minimum * sum_q + minimum * minimum * self.sum_w
        )
        better = (gain > self.gain) & (scale > 0)
        self.gain = torch.where(better, gain, self.gain)
        self.scale = torch.where(better, scale, self.scale)
        self.minimum = torch.where(better, minimum, self.minimum)
