"""Floating-point schemes: FP8 and FP4 codes with scales (quantization.md 2c, 2d, 3.6)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from octavo.core.errors import InvalidField

#: Rows and columns of an FP8 block; the last ones may be smaller.
BLOCK = 128


class FloatFormat(StrEnum):
    """E4M3 (largest 448, no infinity) is the precise one, E5M2 (largest 57,344) the wide one; E2M1 has the values
    0, .5, 1, 1.5, 2, 3, 4, 6 and a sign."""

    E4M3 = "fp8 e4m3"
    E5M2 = "fp8 e5m2"
    E2M1 = "fp4 e2m1"

    @property
    def largest(self) -> float:
        return {"fp8 e4m3": 448.0, "fp8 e5m2": 57344.0, "fp4 e2m1": 6.0}[self.value]

    @property
    def bits(self) -> int:
        return 4 if self is FloatFormat.E2M1 else 8


class Granularity(StrEnum):
    """Which weights share a scale: the matrix, a row, a block of 128 x 128, or a group of a row's inputs."""

    TENSOR = "per tensor"
    CHANNEL = "per channel"
    BLOCK = "block 128x128"
    GROUP = "group"


class ScaleFormat(StrEnum):
    """How scales are stored. E4M3 ones come with a global scale of the matrix (NVFP4), E8M0 ones are powers of two
    (MXFP4)."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    E4M3 = "e4m3"
    E8M0 = "e8m0"


@dataclass(frozen=True, slots=True)
class FloatScheme:
    """Floating-point codes: value = code * scale, or code * scale / global scale (NVFP4)."""

    format: FloatFormat
    granularity: Granularity = Granularity.CHANNEL
    group_size: int | None = None
    scale_format: ScaleFormat = ScaleFormat.FLOAT32

    def __post_init__(self) -> None:
        if (self.granularity is Granularity.GROUP) != (self.group_size is not None):
            raise InvalidField("group", self.group_size, "groups of inputs need a size, and nothing else has one")
        if self.format is FloatFormat.E2M1 and self.granularity is not Granularity.GROUP:
            raise InvalidField("granularity", str(self.granularity), "FP4 weights have scales by group")

    @property
    def bits(self) -> int:
        return self.format.bits

    @property
    def has_global_scale(self) -> bool:
        return self.scale_format is ScaleFormat.E4M3

    def num_groups(self, num_inputs: int) -> int:
        """Scales of a row of `num_inputs`. Raises `InvalidField` if groups do not divide it; blocks may be ragged."""
        if self.granularity is Granularity.BLOCK:
            return -(-num_inputs // BLOCK)
        if self.group_size is None:
            return 1
        if num_inputs % self.group_size:
            raise InvalidField("group", self.group_size, f"groups of {self} do not divide {num_inputs} inputs")
        return num_inputs // self.group_size

    def inputs_per_scale(self, num_inputs: int) -> int:
        """Inputs of a row that share a scale."""
        return BLOCK if self.granularity is Granularity.BLOCK else self.group_size or num_inputs

    def __str__(self) -> str:
        if self == NVFP4:
            return "nvfp4 group 16"
        if self == MXFP4:
            return "mxfp4 group 32"
        if self == MXFP8:
            return "mxfp8 group 32"
        group = f"group {self.group_size}" if self.group_size else str(self.granularity)
        return f"{self.format} {group}"


NVFP4 = FloatScheme(FloatFormat.E2M1, Granularity.GROUP, 16, ScaleFormat.E4M3)
MXFP4 = FloatScheme(FloatFormat.E2M1, Granularity.GROUP, 32, ScaleFormat.E8M0)
MXFP8 = FloatScheme(FloatFormat.E4M3, Granularity.GROUP, 32, ScaleFormat.E8M0)
