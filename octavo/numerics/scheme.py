"""Schemes: what a tensor is quantized to."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.core.errors import InvalidField

BITS = (2, 3, 4, 8)
GROUP_SIZES = (16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class IntegerScheme:
    """Integer codes with one scale for each row and group of `group_size` inputs.

    `group_size` None is one group for a whole row (per channel). Symmetric codes use the full signed range
    `[-2^(b-1), 2^(b-1) - 1]` and no zero point, the scale may be negative; asymmetric codes add an integer
    zero point in the same range: value = (code - zero_point) * scale.
    """

    bits: int
    group_size: int | None = None
    symmetric: bool = True

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            raise InvalidField("bits", self.bits, f"integer schemes have {', '.join(map(str, BITS))} bits")
        if self.group_size is not None and self.group_size not in GROUP_SIZES:
            sizes = ", ".join(map(str, GROUP_SIZES))
            raise InvalidField("group", self.group_size, f"groups are {sizes} inputs, or none for one per row")

    @property
    def lowest(self) -> int:
        return -(2 ** (self.bits - 1))

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
        group = "per channel" if self.group_size is None else f"group {self.group_size}"
        return f"int{self.bits} {'symmetric' if self.symmetric else 'asymmetric'} {group}"
