"""The smallest file within a loss: budgets are tried until a measured one is close to it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from octavo.core.errors import InvalidField
from octavo.measure.fit import Fit
from octavo.measure.fit_table import FitTable

#: A file whose divergence is at least this share of what is allowed is small enough.
_CLOSE_ENOUGH = 0.9
#: After a miss, the next file aims at this share of what is allowed.
_CAUTION = 0.93
_MAX_RUNS = 5
#: Between which natural logarithms the estimate is sought that predicts the target.
_LOG_ESTIMATES = (-30.0, 10.0)
_BISECTION_STEPS = 40


@dataclass(frozen=True, slots=True)
class Tried:
    """A file that was written and measured."""

    fit: Fit
    divergence: float


def search_budget(table: FitTable, max_divergence: float, measure: Callable[[Fit], float]) -> list[Tried]:
    """Files that were tried, the best last: the smallest whose measured KL is at most `max_divergence`.

    `measure` makes a fit's file and gives its KL in nats per token. Estimates add up the groups' errors; the measured
    points correct them, as a power of the estimate between the two nearest. Raises `InvalidField` if no file that was
    tried is good enough, with the nearest.
    """
    tried: list[Tried] = []
    for _ in range(_MAX_RUNS):
        missed = bool(tried) and tried[-1].divergence > max_divergence
        fit = _smallest(table, max_divergence * (_CAUTION if missed else 1.0), tried)
        if any(each.fit.file_bytes == fit.file_bytes for each in tried):
            break
        tried.append(Tried(fit, measure(fit)))
        if _CLOSE_ENOUGH * max_divergence <= tried[-1].divergence <= max_divergence:
            break
    good = [each for each in tried if each.divergence <= max_divergence]
    if not good:
        nearest = min(tried, key=lambda each: each.divergence)
        expected = (
            f"not reached: the best of {len(tried)} files has {nearest.divergence:.4f} nats at "
            f"{nearest.fit.file_bytes:,} bytes ({nearest.fit.bits_per_weight:.2f} bits per weight)"
        )
        raise InvalidField("max_kl", max_divergence, expected)
    best = min(good, key=lambda each: each.fit.file_bytes)
    return [*(each for each in tried if each is not best), best]


def _smallest(table: FitTable, target: float, tried: list[Tried]) -> Fit:
    """The smallest file whose predicted divergence is within `target`; the largest that quantizes anything if none
    is."""
    low, high = _LOG_ESTIMATES
    for _ in range(_BISECTION_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if _predict(math.exp(middle), tried) <= target else (low, middle)
    return table.fit(table.bytes_within(math.exp(low)))


def _predict(estimate: float, tried: list[Tried]) -> float:
    """The estimate as the measured files correct it."""
    points = [each for each in tried if each.fit.expected_divergence > 0 and each.divergence > 0]
    if estimate <= 0 or not points:
        return estimate
    points.sort(key=lambda each: abs(math.log(each.fit.expected_divergence / estimate)))
    near = points[0]
    slope = 1.0
    if len(points) > 1 and points[1].fit.expected_divergence != near.fit.expected_divergence:
        rise = math.log(points[1].divergence / near.divergence)
        slope = rise / math.log(points[1].fit.expected_divergence / near.fit.expected_divergence)
    return near.divergence * (estimate / near.fit.expected_divergence) ** min(max(slope, 0.5), 2.0)
