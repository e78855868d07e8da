"""Fake quantization: a matrix that computes with its codes and learns as if nothing had been rounded.

    weight = (round(units) - zero) * scale,   units = the matrix in steps of its scale

Straight-through gradients (Bengio et al., 2013): the derivative of round is 1. Everything trained is scale-free:
`units` move in fractions of a code, a scale by a factor, so one learning rate serves every matrix.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from octavo.numerics.activations import InputQuantizer
from octavo.numerics.integer import round_half_even_, to_storage
from octavo.numerics.packed_tensor import PackedTensor
from octavo.numerics.scheme import IntegerScheme

#: A scale never shrinks below this share of what it was, and so keeps its sign.
_SMALLEST_FACTOR = 0.1
#: How far from its code a unit may be and still round to it, for sure.
_WITHIN_CODE = 0.4999


class TrainedWeight(ABC):
    """A linear's weight while it is trained. `inputs` rounds what enters the linear (None: nothing does)."""

    scheme: IntegerScheme
    inputs: InputQuantizer | None = None

    @abstractmethod
    def parameters(self) -> dict[str, Tensor]:
        """What updates change, by role: each role has a rate of its own."""

    @abstractmethod
    def weight(self) -> Tensor:
        """The dequantized matrix `[outputs, inputs]` float32, differentiable in `parameters`."""

    @abstractmethod
    def project(self) -> None:
        """After an update: parameters back to where they mean something."""

    @abstractmethod
    def packed(self) -> PackedTensor:
        """The matrix as it is stored; it dequantizes to `weight()`."""

    @abstractmethod
    def latent(self) -> Tensor:
        """What is rounded, `[outputs, inputs]` float32: another training may start from it."""


class LatentWeight(TrainedWeight):
    """Codes, scales and zero points trained together (EfficientQAT, Chen et al., 2024), or the last two alone.

    Starts from `start`; `latent` float32 `[outputs, inputs]` are unrounded weights near it whose codes are to be
    trained as well (None: codes stay). Zero points are whole numbers at all times. `rounded_share` below 1 computes
    with that share of the rounded matrix and the rest of the unrounded one.
    """

    def __init__(self, start: PackedTensor, latent: Tensor | None, inputs: InputQuantizer | None = None) -> None:
        self.inputs, self.scheme, self.shape = inputs, start.scheme, start.shape
        self.rounded_share = 1.0
        self.storage_dtype = start.scale.dtype
        scale = start.scale[:1] if self.scheme.ternary else start.scale  # ternary: one for the whole matrix
        self.scale = scale.to(torch.float32, copy=True)
        self.factor = torch.ones_like(self.scale).requires_grad_()
        self.zero: Tensor | None = None
        if start.zero_point is not None:
            self.zero = start.zero_point.to(torch.float32).requires_grad_()
        self.codes: Tensor | None = start.codes() if latent is None else None
        self.units: Tensor | None = None
        if latent is not None:
            self.units = self._in_steps(latent, start.codes()).requires_grad_()

    def parameters(self) -> dict[str, Tensor]:
        named = {"units": self.units, "scale": self.factor, "zero": self.zero}
        return {role: tensor for role, tensor in named.items() if tensor is not None}

    def weight(self) -> Tensor:
        units = self._codes().to(torch.float32) if self.units is None else self.units
        ends = (self.scheme.lowest, self.scheme.highest)
        return on_grid(units, self._stored_scale(), self._whole_zero(), ends, self.rounded_share).view(self.shape)

    @torch.no_grad()
    def project(self) -> None:
        self.factor.clamp_min_(_SMALLEST_FACTOR)
        for tensor in (None if self.scheme.ternary else self.units, self.zero):
            if tensor is not None:
                tensor.clamp_(self.scheme.lowest, self.scheme.highest)

    @torch.no_grad()
    def packed(self) -> PackedTensor:
        zero = self._whole_zero()
        zero = None if zero is None else zero.to(torch.int8)
        scale = self._stored_scale().to(self.storage_dtype).contiguous()
        return PackedTensor.from_codes(self._codes().view(self.shape), scale, zero, self.scheme)

    @torch.no_grad()
    def latent(self) -> Tensor:
        units = self._codes().to(torch.float32) if self.units is None else self.units.clone()
        if self.zero is not None:
            units -= self.zero.round().unsqueeze(-1)
        return units.mul_(self._stored_scale().unsqueeze(-1)).view(self.shape)

    def _in_steps(self, latent: Tensor, codes: Tensor) -> Tensor:
        """`latent` in steps of the scale `[outputs, groups, group size]`, where it rounds to `codes`: training leaves
        many weights so near a tie that storing them moved some across. Beyond the grid's ends only ternary weights
        may be: most of them are, at first."""
        units = latent.reshape(self.shape[0], self.scale.shape[1], -1) / self.scale.unsqueeze(-1)
        if self.zero is not None:
            units += self.zero.detach().unsqueeze(-1)
        nearest = codes.view_as(units).to(torch.float32)
        lowest = (nearest - _WITHIN_CODE).masked_fill_(nearest == self.scheme.lowest, -torch.inf)
        highest = (nearest + _WITHIN_CODE).masked_fill_(nearest == self.scheme.highest, torch.inf)
        units = units.clamp_(lowest, highest)
        return units if self.scheme.ternary else units.clamp_(self.scheme.lowest, self.scheme.highest)

    def _codes(self) -> Tensor:
        """Signed int8 `[outputs, groups, group size]`."""
        if self.units is not None:
            codes = round_half_even_(self.units.detach().clone())
            return codes.clamp_(self.scheme.lowest, self.scheme.highest).to(torch.int8)
        assert self.codes is not None
        return self.codes.view(self.shape[0], self.scale.shape[1], -1)

    def _stored_scale(self) -> Tensor:
        return stored_scale(self.scale * self.factor, self.storage_dtype).expand(self.shape[0], -1)

    def _whole_zero(self) -> Tensor | None:
        return None if self.zero is None else straight_through(self.zero, self.zero.round())


def on_grid(
    units: Tensor, scale: Tensor, zero: Tensor | None, ends: tuple[int, int], rounded_share: float = 1.0
) -> Tensor:
    """`(round(units) - zero) * scale`, codes clamped to `ends`, for `units` `[rows, groups, group size]`, `scale` and
    `zero` `[rows, groups]`. The gradient passes clamped units too."""
    result: Tensor = _OnGrid.apply(units, scale, zero, ends, rounded_share)
    return result


class _OnGrid(torch.autograd.Function):
    """By hand: autograd would keep four matrices where one is enough."""

    @staticmethod
    def forward(
        ctx: Any, units: Tensor, scale: Tensor, zero: Tensor | None, ends: tuple[int, int], rounded_share: float
    ) -> Tensor:
        steps = round_half_even_(units.clone()).clamp_(*ends)
        if rounded_share < 1.0:
            steps = torch.lerp(units, steps, rounded_share)
        if zero is not None:
            steps.sub_(zero.unsqueeze(-1))
        ctx.save_for_backward(steps, scale)
        ctx.has_zero = zero is not None
        return steps * scale.unsqueeze(-1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None, None, None]:
        steps, scale = ctx.saved_tensors
        of_scale = torch.linalg.vecdot(gradient, steps)
        of_zero = -gradient.sum(-1).mul_(scale) if ctx.has_zero else None
        of_units = gradient * scale.unsqueeze(-1) if ctx.needs_input_grad[0] else None
        return of_units, of_scale, of_zero, None, None


def stored_scale(scale: Tensor, dtype: torch.dtype) -> Tensor:
    """`scale` as it will be read back from storage in `dtype`, float32."""
    return straight_through(scale, to_storage(scale.detach(), dtype).to(torch.float32))


def straight_through(x: Tensor, rounded: Tensor) -> Tensor:
    """`rounded`, with the gradient of `x`."""
    result: Tensor = _StraightThrough.apply(x, rounded.detach())
    return result


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rounded: Tensor) -> Tensor:
        return rounded.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None
