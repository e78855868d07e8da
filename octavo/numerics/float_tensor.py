"""A matrix on a floating-point grid as it lives in memory: FP8 or FP4 codes and their scales."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from octavo.numerics.float_scheme import BLOCK, FloatFormat, FloatScheme, Granularity, ScaleFormat
from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.numerics.scheme import Scheme

#: torch types of the formats that have one.
TORCH_FORMATS = {FloatFormat.E4M3: torch.float8_e4m3fn, FloatFormat.E5M2: torch.float8_e5m2}
#: What the codes of FP4 mean: bit 3 is the sign.
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
E8M0_BIAS = 127


@dataclass(frozen=True, slots=True)
class FloatTensor(QuantizedTensor):
    """`codes` uint8: FP8 `[rows, columns]`; FP4 `[rows, columns / 2]`, the even column in the low nibble.

    `scale` as it is stored: float32 or bfloat16 `[1, 1]`, `[rows, 1]` or `[ceil(rows / 128), ceil(columns / 128)]`;
    float8_e4m3fn (NVFP4) or uint8 exponents of two, bias 127 (MXFP4), `[rows, groups]`. `global_scale` float32 `[1]`
    for NVFP4 alone, which divides: value = code * scale / global_scale.
    """

    codes: Tensor
    scale: Tensor
    global_scale: Tensor | None
    scheme: FloatScheme
    shape: tuple[int, int]

    @property
    def num_bytes(self) -> int:
        return sum(part.nbytes for part in self.parts().values())

    def parts(self) -> dict[str, Tensor]:
        parts = {"codes": self.codes, "scale": self.scale}
        return parts if self.global_scale is None else {**parts, "global_scale": self.global_scale}

    @classmethod
    def from_parts(cls, parts: dict[str, Tensor], scheme: Scheme, shape: tuple[int, int]) -> FloatTensor:
        assert isinstance(scheme, FloatScheme)
        return cls(parts["codes"], parts["scale"], parts.get("global_scale"), scheme, shape)

    def values(self) -> Tensor:
        """What the codes alone mean, float32 `[rows, columns]`."""
        if self.scheme.format is FloatFormat.E2M1:
            nibbles = torch.stack((self.codes & 15, self.codes >> 4), dim=-1).reshape(self.codes.shape[0], -1)
            return torch.tensor(E2M1_VALUES)[nibbles.to(torch.int64)]
        return self.codes.view(TORCH_FORMATS[self.scheme.format]).to(torch.float32)

    def row_scales(self) -> Tensor:
        """Float32 `[rows, groups]`, global scale included: what a row's even cuts of inputs are multiplied by."""
        return row_scales(self.scale, self.global_scale, self.scheme, self.shape[0])

    @property
    def inputs_per_scale(self) -> int:
        """Inputs that a column of `row_scales` is for; the last one may be for fewer."""
        return self.scheme.inputs_per_scale(self.shape[1])

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        scales = self.row_scales().repeat_interleave(self.inputs_per_scale, dim=1)[:, : self.shape[1]]
        return self.values().mul_(scales).to(dtype)

    def slice_rows(self, first: int, end: int) -> FloatTensor:
        """Blocks of rows are cut to rows: the slice of a block scheme has scales of its own rows, 128 inputs each."""
        return self._with_rows(torch.arange(first, min(end, self.shape[0])))

    def rows(self, index: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        return self._with_rows(index).dequantize(dtype)

    def _with_rows(self, index: Tensor) -> FloatTensor:
        scheme, scale = self.scheme, self.scale
        if scheme.granularity is Granularity.BLOCK:
            scheme = replace(scheme, granularity=Granularity.GROUP, group_size=BLOCK)
            scale = scale[index // BLOCK]
        elif len(scale) > 1:
            scale = scale[index]
        return FloatTensor(self.codes[index], scale, self.global_scale, scheme, (len(index), self.shape[1]))


def row_scales(scale: Tensor, global_scale: Tensor | None, scheme: FloatScheme, num_rows: int) -> Tensor:
    """Stored scales -> float32 `[rows, groups]`: what codes are multiplied by."""
    if scheme.scale_format is ScaleFormat.E8M0:
        scale = torch.exp2(scale.to(torch.float32) - E8M0_BIAS)
    scale = scale.to(torch.float32)
    if global_scale is not None:
        scale = scale / global_scale
    if scheme.granularity is Granularity.BLOCK:
        return scale.repeat_interleave(BLOCK, dim=0)[:num_rows]
    return scale.expand(num_rows, -1)
