"""Grids for a linear's inputs: what W8A8 and FP8 schemes round activations to before the product."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from octavo.core.errors import InvalidField

#: Symmetric int8 activations use -127 .. 127.
INT8_LARGEST = 127.0


class ActivationFormat(StrEnum):
    INT8 = "int8"
    E4M3 = "fp8 e4m3"
    NVFP4 = "nvfp4"
    MXFP4 = "mxfp4"


@dataclass(frozen=True, slots=True)
class ActivationScheme:
    """`dynamic`: each token (row) gets its scale from its own largest magnitude; otherwise one calibrated scale serves
    all (per tensor). FP4 activations are emulated: no kernel here multiplies two FP4 numbers."""

    format: ActivationFormat
    dynamic: bool = True

    def __post_init__(self) -> None:
        if not self.dynamic and self.format in (ActivationFormat.NVFP4, ActivationFormat.MXFP4):
            raise InvalidField("activations", f"static {self.format}", "FP4 activations are dynamic")

    @property
    def largest(self) -> float:
        return {"int8": INT8_LARGEST, "fp8 e4m3": 448.0}.get(self.format, 6.0)

    def __str__(self) -> str:
        emulated = " (emulated)" if self.format in (ActivationFormat.NVFP4, ActivationFormat.MXFP4) else ""
        return f"{self.format} {'per token' if self.dynamic else 'static'}{emulated}"


@dataclass(frozen=True, slots=True)
class InputQuantizer:
    """Rounds a linear's inputs. `scale` float32 `[1]` for static schemes, None for dynamic ones."""

    scheme: ActivationScheme
    scale: Tensor | None = None

    def __post_init__(self) -> None:
        if (self.scale is None) != self.scheme.dynamic:
            raise InvalidField("input_scale", self.scale, f"{self.scheme}: static activations need one, dynamic none")

    def round(self, x: Tensor) -> Tensor:
        """Rows `[tokens, inputs]` float32 -> the nearest values of the grid, float32. A row's values depend on that
        row alone; rows of zeros stay zeros; nothing becomes NaN or infinite."""
        if self.scheme.format in (ActivationFormat.NVFP4, ActivationFormat.MXFP4):
            from octavo.numerics.float_grid import round_fp4_rows

            return round_fp4_rows(x, self.scheme.format)
        scale = self.scale
        if scale is None:
            scale = x.abs().amax(-1, keepdim=True) / self.scheme.largest
            scale = torch.where(scale == 0, torch.ones_like(scale), scale)
        codes = (x / scale).clamp_(-self.scheme.largest, self.scheme.largest)
        if self.scheme.format is ActivationFormat.INT8:
            return codes.round_().mul_(scale)
        return codes.to(torch.float8_e4m3fn).to(torch.float32).mul_(scale)
