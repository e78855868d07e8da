"""Calibrated scales of cached keys and values."""

from __future__ import annotations

import math
from dataclasses import dataclass

from octavo.core.errors import InvalidField

#: Formats of a cache that needs calibrated scales: codes -127 .. 127, or E4M3.
KV_FORMATS = ("int8", "fp8")


@dataclass(frozen=True, slots=True)
class KvScales:
    """Scales of one layer's cached keys and values, one for each KV head: a cached number is code * scale.

    Raises `InvalidField` for scales that are zero, negative or not finite: an engine that took 1 instead would answer
    with garbage.
    """

    format: str
    keys: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.format not in KV_FORMATS:
            raise InvalidField("kv_cache", self.format, f"one of {', '.join(KV_FORMATS)}")
        for name, scales in (("k_scale", self.keys), ("v_scale", self.values)):
            if not scales or not all(math.isfinite(scale) and scale > 0 for scale in scales):
                raise InvalidField(name, list(scales), "scales must be there, positive and finite; calibrate again")
