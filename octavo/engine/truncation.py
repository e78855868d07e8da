"""Truncation of a distribution: top-k, top-p and min-p, without ever sorting the vocabulary.

Every filter keeps a set "most likely first, ties by lowest token id", so the three sets are nested and the order in
which they are applied does not matter, except that top-p counts the mass that the other two left.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from octavo.core.sampling_params import SamplingParams

#: Tokens looked at before top-p falls back to selection by radix: most top-p sets are smaller.
_LIKELY_TOKENS = 256


def truncate(probabilities: Tensor, params: SamplingParams) -> tuple[Tensor | None, Tensor]:
    """The kept token ids (ascending; None: the whole vocabulary) and their probabilities, not renormalized.

    `probabilities` float32 `[vocabulary]`.
    """
    ids: Tensor | None = None
    if 0 < params.top_k < probabilities.numel():
        ids = most_likely(probabilities, params.top_k)
        probabilities = probabilities[ids]
    if params.min_p > 0.0:
        ids, probabilities = _narrow(ids, probabilities, at_least(probabilities, params.min_p))
    if params.top_p < 1.0:
        ids, probabilities = _narrow(ids, probabilities, nucleus(probabilities, params.top_p))
    return ids, probabilities


def most_likely(scores: Tensor, count: int) -> Tensor:
    """Positions of the `count` highest scores `[n]`, ascending; of tied ones the lowest positions."""
    return _at_or_above(scores, torch.topk(scores, count).values[-1], count)


def at_least(probabilities: Tensor, min_p: float) -> Tensor:
    """Positions, ascending, whose probability is at least `min_p` times the highest one."""
    return (probabilities >= min_p * probabilities.max()).nonzero().squeeze(-1)


def nucleus(probabilities: Tensor, top_p: float) -> Tensor:
    """Positions, ascending, of the smallest set of most likely tokens whose share of the mass reaches `top_p`.

    Looks at the `_LIKELY_TOKENS` highest first; a flatter distribution goes to `_nucleus_by_radix`.
    """
    wanted_mass = top_p * _mass(probabilities)
    count = min(_LIKELY_TOKENS, probabilities.numel())
    highest = torch.topk(probabilities, count).values
    reached = highest.cumsum(0, dtype=torch.float64) >= wanted_mass
    if bool(reached[-1]):
        place = int(reached.int().argmax())
        return _at_or_above(probabilities, highest[place], place + 1)
    return _nucleus_by_radix(probabilities, wanted_mass)


def _nucleus_by_radix(probabilities: Tensor, wanted_mass: float) -> Tensor:
    """Non-negative floats order as their bit patterns do: find the threshold's upper 16 bits, then its lower 16,
    each from a histogram of mass."""
    bits = probabilities.view(torch.int32)
    upper, mass_above = _threshold_digit(bits >> 16, probabilities, wanted_mass)
    inside = (bits >> 16) == upper
    lower, mass_within = _threshold_digit(bits[inside] & 0xFFFF, probabilities[inside], wanted_mass - mass_above)
    threshold_bits = (upper << 16) | lower
    above = (bits > threshold_bits).nonzero().squeeze(-1)
    tied = (bits == threshold_bits).nonzero().squeeze(-1)
    missing_mass = wanted_mass - mass_above - mass_within
    threshold = float(probabilities[tied[0]])
    tied_mass = torch.arange(1, tied.numel() + 1, dtype=torch.float64) * threshold
    num_tied = int((tied_mass < missing_mass).sum()) + 1
    return torch.cat([above, tied[:num_tied]]).sort().values


def _threshold_digit(digits: Tensor, mass: Tensor, wanted_mass: float) -> tuple[int, float]:
    """The highest digit at which the mass of all digits at or above it reaches `wanted_mass` (else the lowest digit
    in use), and the mass strictly above that digit."""
    histogram = torch.bincount(digits, weights=mass.double())
    from_top = histogram.flip(0).cumsum(0)
    reached = from_top >= wanted_mass
    place = int(reached.int().argmax()) if bool(reached[-1]) else histogram.numel() - 1 - int(digits.min())
    mass_above = float(from_top[place - 1]) if place else 0.0
    return histogram.numel() - 1 - place, mass_above


def _at_or_above(scores: Tensor, threshold: Tensor, count: int) -> Tensor:
    """`count` positions, ascending: all above the threshold, then the lowest ones that equal it."""
    kept = torch.from_numpy(np.flatnonzero(scores.numpy() >= threshold.item()))
    surplus = kept.numel() - count
    if not surplus:
        return kept
    last_tied = (scores[kept] == threshold).nonzero().squeeze(-1)[-surplus:]
    remains = torch.ones(kept.numel(), dtype=torch.bool)
    remains[last_tied] = False
    return kept[remains]


def _mass(probabilities: Tensor) -> float:
    """A running sum goes one way only: unlike `sum`, it does not depend on the number of threads."""
    return float(probabilities.cumsum(0, dtype=torch.float64)[-1])


def _narrow(ids: Tensor | None, probabilities: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    return (kept if ids is None else ids[kept]), probabilities[kept]
