"""Axes of charts: from values to pixels, and where ticks stand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

#: Share of an axis that stays free at both ends.
_MARGIN = 0.06


@dataclass(frozen=True, slots=True)
class Axis:
    """What an axis shows; `show` writes a tick's value."""

    label: str
    is_log: bool = False
    show: Callable[[float], str] = lambda value: f"{value:,.4g}"


class Scale:
    """An axis between two pixels, wide enough for `values`; of a logarithmic one, only those above zero count."""

    def __init__(self, axis: Axis, values: Sequence[float], first_pixel: float, last_pixel: float) -> None:
        finite = [value for value in values if math.isfinite(value) and (value > 0 or not axis.is_log)] or [1.0]
        self.axis = axis
        self._pixels = (first_pixel, last_pixel)
        low, high = self._forward(min(finite)), self._forward(max(finite))
        if high - low < 1e-9 * max(1.0, abs(high)):
            spread = 0.15 if axis.is_log else 0.1 * abs(high) or 1.0
            low, high = low - spread, high + spread
        margin = _MARGIN * (high - low)
        self._low, self._high = low - margin, high + margin

    def pixel(self, value: float) -> float:
        """Values that a logarithmic axis cannot show stand at its low end."""
        if self.axis.is_log and value <= 0:
            return self._pixels[0]
        share = (self._forward(value) - self._low) / (self._high - self._low)
        return self._pixels[0] + share * (self._pixels[1] - self._pixels[0])

    def ticks(self, wanted: int = 5) -> list[float]:
        """Round values within the axis, about as many as wanted."""
        if self.axis.is_log:
            return self._log_ticks(wanted)
        return linear_ticks(self._low, self._high, wanted)

    def _log_ticks(self, wanted: int) -> list[float]:
        low, high = 10.0**self._low, 10.0**self._high
        decades = range(math.floor(self._low), math.ceil(self._high) + 1)
        for mantissas in ((1,), (1, 3), (1, 2, 5)):
            ticks = [each * 10.0**decade for decade in decades for each in mantissas]
            ticks = [tick for tick in ticks if low <= tick <= high]
            if len(ticks) >= min(wanted, 3):
                step = -(-len(ticks) // (2 * wanted))
                return ticks[::step]
        return linear_ticks(low, high, wanted)

    def _forward(self, value: float) -> float:
        return math.log10(value) if self.axis.is_log else value


def linear_ticks(low: float, high: float, wanted: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / max(1, wanted)
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(each * magnitude for each in (1, 2, 5, 10) if each * magnitude >= rough)
    first = math.ceil(low / step)
    return [round(index * step, 12) for index in range(first, math.floor(high / step) + 1)]
