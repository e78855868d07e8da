"""SignRound (Cheng et al., 2023): learn by signs of gradients which way each weight is rounded.

codes = round(W / scale + V),   V within [-1/2, 1/2];   scale and zero point from the range's two ends, each shrunk
                                                        or grown by a factor of its own
"""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.numerics.activations import InputQuantizer
from octavo.numerics.integer import round_half_even_
from octavo.numerics.packed_tensor import PackedTensor
from octavo.quantize.fake_quantize import TrainedWeight, on_grid, stored_scale, straight_through

#: How far the ends of a group's range may move.
_SMALLEST_CLIP, _LARGEST_CLIP = 0.5, 1.5


class RoundingOffsets(TrainedWeight):
    """`weight` float32 `[outputs, inputs]` is fixed; `start` is its grid. Symmetric grids have one clip factor."""

    def __init__(self, start: PackedTensor, weight: Tensor, inputs: InputQuantizer | None = None) -> None:
        self.inputs, self.scheme, self.shape = inputs, start.scheme, start.shape
        self.storage_dtype = start.scale.dtype
        self.scale = start.scale.to(torch.float32, copy=True)
        self.zero = None if start.zero_point is None else start.zero_point.to(torch.float32)
        self.fixed = weight.reshape(*self.scale.shape, -1).clone()
        self.offset = torch.zeros_like(self.fixed).requires_grad_()
        num_ends = 1 if self.zero is None else 2
        self.clips = torch.ones(num_ends, *self.scale.shape).requires_grad_()

    def parameters(self) -> dict[str, Tensor]:
        return {"offset": self.offset, "clip": self.clips}

    def weight(self) -> Tensor:
        scale, zero = self._grid()
        ends = (self.scheme.lowest, self.scheme.highest)
        return on_grid(self._units(scale, zero), scale, zero, ends).view(self.shape)

    @torch.no_grad()
    def project(self) -> None:
        self.offset.clamp_(-0.5, 0.5)
        self.clips.clamp_(_SMALLEST_CLIP, _LARGEST_CLIP)

    @torch.no_grad()
    def packed(self) -> PackedTensor:
        scale, zero = self._grid()
        codes = round_half_even_(self._units(scale, zero)).to(torch.int8).view(self.shape)
        stored_zero = None if zero is None else zero.to(torch.int8)
        return PackedTensor.from_codes(codes, scale.to(self.storage_dtype), stored_zero, self.scheme)

    @torch.no_grad()
    def latent(self) -> Tensor:
        scale, zero = self._grid()
        units = self._units(scale, zero)
        return (units if zero is None else units - zero.unsqueeze(-1)).mul_(scale.unsqueeze(-1)).view(self.shape)

    def _grid(self) -> tuple[Tensor, Tensor | None]:
        lowest, highest = self.scheme.lowest, self.scheme.highest
        if self.zero is None:
            return stored_scale(self.scale * self.clips[0], self.storage_dtype), None
        low = (lowest - self.zero) * self.scale * self.clips[0]
        high = (highest - self.zero) * self.scale * self.clips[1]
        scale = stored_scale((high - low) / (highest - lowest), self.storage_dtype)
        zero = lowest - low / scale
        return scale, straight_through(zero, zero.round().clamp(lowest, highest))

    def _units(self, scale: Tensor, zero: Tensor | None) -> Tensor:
        units = self.fixed / scale.unsqueeze(-1) + self.offset
        if zero is not None:
            units = units + zero.unsqueeze(-1)
        return units.clamp(self.scheme.lowest, self.scheme.highest)
