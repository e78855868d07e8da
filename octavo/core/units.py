"""Bytes and seconds between people and programs."""

from __future__ import annotations

import re

from octavo.core.errors import InvalidField

_FACTORS = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip


def parse_bytes(text: str | int, field: str = "memory") -> int:
    """`"4GiB"`, `"1.5g"`, `"800MB"` or a plain number of bytes -> bytes. Raises `InvalidField`."""
    if isinstance(text, int) and not isinstance(text, bool):
        amount = text
    else:
        match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([a-zA-Z]*)\s*", str(text))
        if match is None or match[2].lower() not in _FACTORS:
            raise InvalidField(field, text, "write a size such as 4GiB, 800MB or a number of bytes")
        amount = int(float(match[1]) * _FACTORS[match[2].lower()])
    if amount <= 0:
        raise InvalidField(field, text, "a size must be above zero")
    return amount


def format_bytes(num_bytes: int | float) -> str:
    """Bytes -> a short text in binary units: `1.5 GiB`, `312.0 MiB`, `96 B`."""
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def format_seconds(seconds: float) -> str:
    """Seconds -> `850 ms`, `12.3 s`, `4 min 05 s`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 90:
        return f"{seconds:.1f} s"
    return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
