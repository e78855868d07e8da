"""Many measured values as a few: mean and percentiles."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from octavo.core.errors import InvalidField

DEFAULT_PERCENTILES = (50.0, 90.0, 99.0)


@dataclass(frozen=True, slots=True)
class Summary:
    """`percentiles` maps 50.0 to the median; values in between are interpolated."""

    count: int
    mean: float
    smallest: float
    largest: float
    percentiles: dict[float, float]

    @classmethod
    def of(cls, values: Sequence[float], percentiles: Sequence[float] = DEFAULT_PERCENTILES) -> Summary | None:
        """None for no values."""
        if not values:
            return None
        ordered = sorted(values)
        wanted = {each: _percentile(ordered, each) for each in percentiles}
        return cls(len(ordered), statistics.fmean(ordered), ordered[0], ordered[-1], wanted)

    @property
    def median(self) -> float:
        return self.percentiles[50.0]

    def to_dict(self, unit: str) -> dict[str, float]:
        """`{"mean_<unit>": ..., "p99_<unit>": ...}`."""
        named = {f"p{each:g}_{unit}": value for each, value in self.percentiles.items()}
        return {
            "count": self.count,
            f"mean_{unit}": self.mean,
            f"min_{unit}": self.smallest,
            f"max_{unit}": self.largest,
            **named,
        }

    def milliseconds(self) -> str:
        """For people, of values in seconds."""
        parts = [f"mean {1000 * self.mean:.1f}"]
        parts += [f"p{each:g} {1000 * value:.1f}" for each, value in self.percentiles.items()]
        return ", ".join(parts) + " ms"


def parse_percentiles(text: str) -> tuple[float, ...]:
    """`"50,90,99"` -> numbers; the median is always among them. Raises `InvalidField`."""
    try:
        values = {float(each) for each in text.split(",")}
    except ValueError:
        values = {-1.0}
    if not all(0 <= each <= 100 for each in values):
        raise InvalidField("--metric-percentiles", text, "write numbers from 0 to 100 with commas, such as 50,90,99")
    return tuple(sorted(values | {50.0}))


def _percentile(ordered: Sequence[float], percentile: float) -> float:
    place = (len(ordered) - 1) * percentile / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
