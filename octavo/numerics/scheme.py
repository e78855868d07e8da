"""Schemes: what a tensor is quantized to.

IntegerScheme   2, 3, 4, 8 bits, symmetric or not; ternary
FloatScheme     FP8 (E4M3, E5M2), NVFP4, MXFP4 (`float_scheme`)
LinearScheme    one of these for a linear's weights, and a grid for its inputs or none
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from octavo.core.errors import InvalidField
from octavo.numerics.activations import ActivationScheme
from octavo.numerics.float_scheme import FloatFormat, FloatScheme, Granularity, ScaleFormat

BITS = (2, 3, 4, 8)
GROUP_SIZES = (16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class IntegerScheme:
    """Integer codes with one scale for each row and group of `group_size` inputs.

    `group_size` None is one group for a whole row (per channel). Symmetric codes use the full signed range
    `[-2^(b-1), 2^(b-1) - 1]` and no zero point, the scale may be negative; asymmetric codes add an integer
    zero point in the same range: value = (code - zero_point) * scale.

    `ternary` codes are -1, 0, 1 in two bits, with one scale for the whole matrix (BitNet b1.58, Ma et al. 2024).
    """

    bits: int
    group_size: int | None = None
    symmetric: bool = True
    ternary: bool = False

    def __post_init__(self) -> None:
        if self.ternary and (self.bits, self.group_size, self.symmetric) != (2, None, True):
            raise InvalidField("ternary", str(self.bits), "ternary codes have 2 bits, no groups and no zero points")
        if self.bits not in BITS:
            raise InvalidField("bits", self.bits, f"integer schemes have {', '.join(map(str, BITS))} bits")
        if self.group_size is not None and self.group_size not in GROUP_SIZES:
            sizes = ", ".join(map(str, GROUP_SIZES))
            raise InvalidField("group", self.group_size, f"groups are {sizes} inputs, or none for one per row")

    @property
    def lowest(self) -> int:
        return -1 if self.ternary else -(2 ** (self.bits - 1))

    @property
    def highest(self) -> int:
        return 2 ** (self.bits - 1) - 1

    def num_groups(self, num_inputs: int) -> int:
        """Groups in a row of `num_inputs`. Raises `InvalidField` if the group size does not divide it."""
        if self.group_size is None:
            return 1
        if num_inputs % self.group_size:
            fits = [size for size in GROUP_SIZES if num_inputs % size == 0]
            expected = f"group {self.group_size} does not divide {num_inputs} inputs; these do: {fits or 'none'}"
            raise InvalidField("group", self.group_size, expected)
        return num_inputs // self.group_size

    def __str__(self) -> str:
        if self.ternary:
            return "ternary per tensor"
        group = "per channel" if self.group_size is None else f"group {self.group_size}"
        return f"int{self.bits} {'symmetric' if self.symmetric else 'asymmetric'} {group}"


Scheme: TypeAlias = IntegerScheme | FloatScheme


@dataclass(frozen=True, slots=True)
class LinearScheme:
    """What a linear computes with: weights on `weights`' grid, inputs on `inputs`' (None: as they come)."""

    weights: Scheme
    inputs: ActivationScheme | None = None

    def __str__(self) -> str:
        return str(self.weights) if self.inputs is None else f"{self.weights} x {self.inputs}"


def scheme_fields(scheme: Scheme) -> dict[str, object]:
    """A scheme as JSON; `scheme_from_fields` is the inverse."""
    return {"kind": "integer" if isinstance(scheme, IntegerScheme) else "float", **asdict(scheme)}


def scheme_from_fields(fields: dict[str, Any]) -> Scheme:
    fields = dict(fields)
    if fields.pop("kind") == "integer":
        return IntegerScheme(**fields)
    format, granularity = FloatFormat(fields["format"]), Granularity(fields["granularity"])
    return FloatScheme(format, granularity, fields["group_size"], ScaleFormat(fields["scale_format"]))
