"""Grids for a linear's inputs: what W8A8 and FP8 schemes round activations to before the product."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from octavo.core.errors import InvalidField

#: Symmetric int8 activations use -127 .. 127.
INT8_LARGEST = 127.0
E4M3_LARGEST = 448.0


class ActivationFormat(StrEnum):
    """One scale for a row (or a tensor) with int8 and E4M3; the others have one for each group of a row's inputs."""

    INT8 = "int8"
    E4M3 = "fp8 e4m3"
    E4M3_GROUPS = "fp8 e4m3 group 128"
    MXFP8 = "mxfp8"
    NVFP4 = "nvfp4"
    MXFP4 = "mxfp4"


_BY_ROW = (ActivationFormat.INT8, ActivationFormat.E4M3)
_FP4 = (ActivationFormat.NVFP4, ActivationFormat.MXFP4)


@dataclass(frozen=True, slots=True)
class ActivationScheme:
    """`dynamic`: each token (row) gets its scales from its own largest magnitudes; otherwise one calibrated scale
    serves all (per tensor). NVFP4 has both: scales of groups are a row's own, the global scale is calibrated. FP4
    activations are emulated: no kernel here multiplies two FP4 numbers."""

    format: ActivationFormat
    dynamic: bool = True

    def __post_init__(self) -> None:
        if not self.dynamic and self.format not in _BY_ROW:
            raise InvalidField("activations", f"static {self.format}", "activations with groups are dynamic")

    @property
    def largest(self) -> float:
        return INT8_LARGEST if self.format is ActivationFormat.INT8 else 6.0 if self.format in _FP4 else E4M3_LARGEST

    @property
    def needs_scale(self) -> bool:
        """Whether a number must be calibrated before inputs can be rounded."""
        return not self.dynamic or self.format is ActivationFormat.NVFP4

    def calibrated(self, largest: float) -> Tensor | None:
        """The scale float32 `[1]` for inputs up to `largest`: it maps that magnitude to the grid's end."""
        if not self.needs_scale:
            return None
        wide = torch.tensor([max(largest, torch.finfo(torch.float32).tiny)])
        if self.format is ActivationFormat.NVFP4:
            from octavo.numerics.float_grid import nvfp4_global_scale

            return nvfp4_global_scale(wide)
        return wide / self.largest

    def __str__(self) -> str:
        emulated = " (emulated)" if self.format in _FP4 else ""
        return f"{self.format} {'per token' if self.dynamic else 'static'}{emulated}"


@dataclass(frozen=True, slots=True)
class InputQuantizer:
    """Rounds a linear's inputs. `scale` float32 `[1]`: for static schemes what codes are multiplied by, for NVFP4 the
    global scale, which divides; None where `scheme` needs none. Raises `InvalidField` for a scale that is missing,
    surplus, or not a positive finite number."""

    scheme: ActivationScheme
    scale: Tensor | None = None

    def __post_init__(self) -> None:
        if (self.scale is not None) != self.scheme.needs_scale:
            raise InvalidField("input_scale", self.scale, f"{self.scheme}: calibrated inputs need one, others none")
        if self.scale is not None and not (self.scale.numel() == 1 and 0 < float(self.scale) < float("inf")):
            raise InvalidField("input_scale", self.scale.tolist(), "one positive finite number; calibrate again")

    def round(self, x: Tensor) -> Tensor:
        """Rows `[tokens, inputs]` float32 -> the nearest values of the grid, float32. A row's values depend on that
        row alone; rows of zeros stay zeros; nothing becomes NaN or infinite."""
        if self.scheme.format not in _BY_ROW:
            return self._round_groups(x)
        scale = self.scale
        if scale is None:
            scale = x.abs().amax(-1, keepdim=True) / self.scheme.largest
            scale = torch.where(scale == 0, torch.ones_like(scale), scale)
        codes = (x / scale).clamp_(-self.scheme.largest, self.scheme.largest)
        if self.scheme.format is ActivationFormat.INT8:
            return codes.round_().mul_(scale)
        return codes.to(torch.float8_e4m3fn).to(torch.float32).mul_(scale)

    def _round_groups(self, x: Tensor) -> Tensor:
        from octavo.numerics.float_grid import nearest_rows
        from octavo.numerics.float_scheme import MXFP4, MXFP8, NVFP4, FloatFormat, FloatScheme, Granularity

        grids = {
            ActivationFormat.E4M3_GROUPS: FloatScheme(FloatFormat.E4M3, Granularity.GROUP, 128),
            ActivationFormat.MXFP8: MXFP8,
            ActivationFormat.NVFP4: NVFP4,
            ActivationFormat.MXFP4: MXFP4,
        }
        return nearest_rows(x, grids[self.scheme.format], self.scale)
