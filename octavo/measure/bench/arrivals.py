"""When requests arrive: a Poisson process, or another renewal process of the same rate."""

from __future__ import annotations

import math
import random

from octavo.core.errors import InvalidField


def arrival_seconds(count: int, request_rate: float, burstiness: float = 1.0, seed: int = 0) -> list[float]:
    """`count` times from 0 on, ascending; gaps are gamma distributed with mean `1 / request_rate`.

    `burstiness` is the shape of the gamma distribution: 1 is a Poisson process, less is burstier, more is more even.
    An infinite rate sends all at once. Raises `InvalidField`.
    """
    if not request_rate > 0:
        raise InvalidField("--request-rate", request_rate, "must be above 0 requests a second, or inf")
    if not (0 < burstiness < math.inf):
        raise InvalidField("--burstiness", burstiness, "must be a number above 0; 1 is a Poisson process")
    if math.isinf(request_rate):
        return [0.0] * count
    drawn = random.Random(f"arrivals {seed}")
    times, now = [], 0.0
    for _ in range(count):
        times.append(now)
        now += drawn.gammavariate(burstiness, 1 / (request_rate * burstiness))
    return times
