"""The schemes by the names that users type."""

from __future__ import annotations

from octavo.core.errors import InvalidField
from octavo.numerics.activations import ActivationFormat, ActivationScheme
from octavo.numerics.float_scheme import MXFP4, NVFP4, FloatFormat, FloatScheme, Granularity, ScaleFormat
from octavo.numerics.scheme import IntegerScheme, LinearScheme

#: Integer weights of `bits`, `group` and `symmetric`; every other name says all of that itself.
INTEGER = "int"

_INT8_ROWS = IntegerScheme(8, None, True)
_FP8_ROWS = FloatScheme(FloatFormat.E4M3, Granularity.CHANNEL)
_FP8_MATRIX = FloatScheme(FloatFormat.E4M3, Granularity.TENSOR)
_FP8_BLOCKS = FloatScheme(FloatFormat.E4M3, Granularity.BLOCK)
_MXFP8 = FloatScheme(FloatFormat.E4M3, Granularity.GROUP, 32, ScaleFormat.E8M0)

NAMED = {
    "w8a8": LinearScheme(_INT8_ROWS, ActivationScheme(ActivationFormat.INT8)),
    "w8a8-static": LinearScheme(_INT8_ROWS, ActivationScheme(ActivationFormat.INT8, dynamic=False)),
    "fp8": LinearScheme(_FP8_ROWS, ActivationScheme(ActivationFormat.E4M3)),
    "fp8-static": LinearScheme(_FP8_MATRIX, ActivationScheme(ActivationFormat.E4M3, dynamic=False)),
    "fp8-block": LinearScheme(_FP8_BLOCKS),
    "fp8-weights": LinearScheme(_FP8_ROWS),
    "mxfp8": LinearScheme(_MXFP8),
    "nvfp4": LinearScheme(NVFP4),
    "mxfp4": LinearScheme(MXFP4),
    "nvfp4a4": LinearScheme(NVFP4, ActivationScheme(ActivationFormat.NVFP4)),
    "mxfp4a4": LinearScheme(MXFP4, ActivationScheme(ActivationFormat.MXFP4)),
    "ternary": LinearScheme(IntegerScheme(2, None, True, ternary=True), ActivationScheme(ActivationFormat.INT8)),
}


def linear_scheme(name: str, bits: int, group: int | None, symmetric: bool) -> LinearScheme:
    """The scheme called `name`. Raises `InvalidField` for a name that is none."""
    if name == INTEGER:
        return LinearScheme(IntegerScheme(bits, group, symmetric))
    if name in NAMED:
        return NAMED[name]
    if name.startswith("fp8-e5m2"):
        expected = "no checkpoint format can declare E5M2 weights; E4M3 (fp8) is more precise, and E5M2 is for KV alone"
        raise InvalidField("scheme", name, expected)
    raise InvalidField("scheme", name, f"schemes are {', '.join((INTEGER, *NAMED))}")
