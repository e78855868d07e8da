"""Rounding to a floating-point grid: which scales, then which codes (quantization.md 2c, 3.6).

Codes saturate: nothing becomes NaN. A group of zeros has scale 1 (an exponent of 0 for powers of two).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.core.errors import InvalidField
from octavo.numerics.float_scheme import BLOCK, FloatFormat, FloatScheme, Granularity, ScaleFormat
from octavo.numerics.float_tensor import E8M0_BIAS, TORCH_FORMATS, FloatTensor, row_scales

#: Half-way points between FP4 values; a tie goes to the even code, so some of them belong to the code above.
_E2M1_BOUNDS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
_E2M1_TIES_UP = (False, True, False, True, False, True, False)
#: x + 1.5 * 2^n - 1.5 * 2^n rounds float32 x to multiples of 2^(n - 23), ties to even: FP4's steps .5, 1 and 2.
_HALVES, _ONES, _TWOS = 1.5 * 2**22, 1.5 * 2**23, 1.5 * 2**24
_SMALLEST_E4M3, _LARGEST_E4M3 = 2.0**-9, 448.0
#: NVFP4 scales that the search tries, in shares of the one that maps a group's largest magnitude to 6. 1.5 maps it to
#: 4 (between 4 and 6 the grid is coarsest; "four over six", Cook et al. 2025), the others are E4M3 neighbours.
_NVFP4_SHARES = (1.5, 1.375, 1.25, 1.125, 0.9375, 0.875, 0.8125, 0.75)
#: Exponents that the search tries beside the rule's own.
_EXPONENT_STEPS = (1, -1)
_E4M3 = torch.float8_e4m3fn
#: Elements searched at once: temporaries stay in cache.
_CHUNK_ELEMENTS = 1 << 16


@dataclass(frozen=True, slots=True)
class FloatGrid:
    """The representable values of every group, fixed before any code is chosen; scales as `FloatTensor` has them."""

    scale: Tensor
    global_scale: Tensor | None
    scheme: FloatScheme
    shape: tuple[int, int]

    def steps(self) -> Tensor:
        """Float32 `[rows, groups]`: what a row's even cuts of inputs are multiples of."""
        return row_scales(self.scale, self.global_scale, self.scheme, self.shape[0])

    @property
    def inputs_per_step(self) -> int:
        """Inputs that a column of `steps` is for; the last one may be for fewer."""
        return self.scheme.inputs_per_scale(self.shape[1])

    def nearest_(self, multiples: Tensor, group: int) -> Tensor:
        """The nearest values of the format, in place; they are the same for every group."""
        return nearest_values_(multiples, self.scheme.format)

    def round(self, weight: Tensor) -> FloatTensor:
        """Nearest codes of `weight` `[rows, columns]`."""
        rows, columns = self.shape
        step, chunk = self.steps(), max(1, _CHUNK_ELEMENTS // columns)
        codes = []
        for start in range(0, rows, chunk):
            part = step[start : start + chunk].repeat_interleave(self.inputs_per_step, dim=1)[:, :columns]
            codes.append(encode_values(weight[start : start + chunk].to(torch.float32) / part, self.scheme.format))
        return self.of_codes(torch.cat(codes))

    def pack(self, multiples: Tensor) -> FloatTensor:
        """From values of the format itself, float32 `[rows, columns]`: what steps are to be multiplied by."""
        return self.of_codes(encode_values(multiples, self.scheme.format))

    def of_codes(self, codes: Tensor) -> FloatTensor:
        return FloatTensor(codes, self.scale, self.global_scale, self.scheme, self.shape)


def encode_float(
    weight: Tensor,
    scheme: FloatScheme,
    *,
    global_scale: Tensor | None = None,
    search: bool = True,
    importance: Tensor | None = None,
) -> FloatTensor:
    """Nearest codes of `weight` `[rows, columns]` on the grid that `choose_float_grid` finds."""
    grid = choose_float_grid(weight, scheme, global_scale=global_scale, search=search, importance=importance)
    return grid.round(weight)


def choose_float_grid(
    weight: Tensor,
    scheme: FloatScheme,
    *,
    global_scale: Tensor | None = None,
    search: bool = True,
    importance: Tensor | None = None,
) -> FloatGrid:
    """Scales of `weight` `[rows, columns]`: the largest magnitude becomes the format's largest value. `global_scale`
    float32 `[1]` is what fused members of an NVFP4 scheme share (`nvfp4_global_scale`); None: the matrix's own.

    With `search`, schemes whose scales are coarse (NVFP4, MXFP4, MXFP8) get those of least squared error among the
    rule's and its neighbours; `importance` `[columns]` (a Hessian's diagonal) weighs the squared errors. Where scales
    are float32 the rule stands: floating-point codes lose nothing to it, and clipping costs more than it gains.

    Raises `InvalidField` for weights that are not finite and for groups that do not divide the columns.
    """
    if not bool(torch.isfinite(weight).all()):
        raise InvalidField("weight", "inf or nan", "weights must be finite to be quantized")
    rows, columns = weight.shape
    num_groups = scheme.num_groups(columns)
    if scheme.has_global_scale and global_scale is None:
        global_scale = nvfp4_global_scale(weight.abs().max())
    if scheme.granularity is not Granularity.GROUP:
        scale = _stored_scale(_largest(weight.to(torch.float32), scheme), scheme, None)
        return FloatGrid(scale, None, scheme, (rows, columns))
    weights = None if importance is None else importance.to(torch.float32).reshape(1, num_groups, -1)
    scales, chunk = [], max(1, _CHUNK_ELEMENTS // columns)
    for start in range(0, rows, chunk):
        groups = weight[start : start + chunk].to(torch.float32).reshape(-1, num_groups, columns // num_groups)
        scale = _stored_scale(groups.abs().amax(-1), scheme, global_scale)
        scales.append(_searched(groups, scale, scheme, global_scale, weights) if search else scale)
    return FloatGrid(torch.cat(scales), global_scale, scheme, (rows, columns))


def nvfp4_global_scale(largest: Tensor) -> Tensor:
    """448 * 6 / the largest magnitude, float32 `[1]`: the largest block scale becomes 448. 1 where there is nothing
    to scale, or where the quotient is beyond float32."""
    scale = _LARGEST_E4M3 * 6.0 / largest.to(torch.float32).reshape(1)
    return torch.where(torch.isfinite(scale), scale, 1.0)


def nearest_values_(x: Tensor, format: FloatFormat) -> Tensor:
    """The nearest values of the format, ties to even, saturated; float32, in place."""
    x.clamp_(-format.largest, format.largest)
    if format is not FloatFormat.E2M1:
        return x.copy_(x.to(TORCH_FORMATS[format]))
    magnitude = x.abs()
    magic = torch.where(magnitude < 2.0, _HALVES, torch.where(magnitude < 4.0, _ONES, _TWOS))
    return x.add_(magic).sub_(magic)


def encode_values(values: Tensor, format: FloatFormat) -> Tensor:
    """Nearest codes, ties to even, saturated: uint8 like `FloatTensor.codes`."""
    values = values.clamp(-format.largest, format.largest)
    if format is not FloatFormat.E2M1:
        return values.to(TORCH_FORMATS[format]).view(torch.uint8)
    magnitude = values.abs()
    codes = torch.zeros_like(values, dtype=torch.uint8)
    for bound, tie_up in zip(_E2M1_BOUNDS, _E2M1_TIES_UP, strict=True):
        codes += (magnitude >= bound) if tie_up else (magnitude > bound)
    codes |= torch.signbit(values).to(torch.uint8) << 3
    return codes[:, 0::2] | (codes[:, 1::2] << 4)


def nearest_rows(x: Tensor, scheme: FloatScheme, global_scale: Tensor | None = None) -> Tensor:
    """Rows `[tokens, inputs]` float32 on a grid of groups, as activations are rounded: a row's last group may be
    smaller, and scales follow the rule."""
    size = scheme.group_size
    assert size is not None
    groups = torch.nn.functional.pad(x, (0, -x.shape[1] % size)).reshape(len(x), -1, size)
    stored = _stored_scale(groups.abs().amax(-1), scheme, global_scale)
    step = row_scales(stored, global_scale, scheme, len(x)).unsqueeze(-1)
    return nearest_values_(groups / step, scheme.format).mul_(step).reshape(len(x), -1)[:, : x.shape[1]]


def _largest(weight: Tensor, scheme: FloatScheme) -> Tensor:
    """Largest magnitudes, shaped like the scales of a matrix, of rows, or of blocks."""
    magnitude = weight.abs()
    if scheme.granularity is Granularity.TENSOR:
        return magnitude.amax().reshape(1, 1)
    if scheme.granularity is Granularity.CHANNEL:
        return magnitude.amax(1, keepdim=True)
    rows, columns = weight.shape
    padded = torch.nn.functional.pad(magnitude, (0, -columns % BLOCK, 0, -rows % BLOCK))
    return padded.reshape(-1, BLOCK, padded.shape[1] // BLOCK, BLOCK).amax((1, 3))


def _stored_scale(largest: Tensor, scheme: FloatScheme, global_scale: Tensor | None) -> Tensor:
    """The rule: scales as the file holds them, from largest magnitudes; where all weights are zero: 1."""
    if scheme.scale_format is ScaleFormat.E8M0:
        return _exponent(largest, scheme.format)
    scale = largest / scheme.format.largest
    if scheme.scale_format is ScaleFormat.E4M3:
        assert global_scale is not None
        return torch.where(scale > 0, scale * global_scale, 1.0).clamp(_SMALLEST_E4M3, _LARGEST_E4M3).to(_E4M3)
    scale = torch.where(scale > 0, scale, 1.0)
    return scale.to(torch.bfloat16) if scheme.scale_format is ScaleFormat.BFLOAT16 else scale


def _exponent(largest: Tensor, format: FloatFormat) -> Tensor:
    """E8M0 exponents, bias 127: floor(log2(largest)) less the grid's own, one more where the mantissa would clip."""
    mantissa, exponent = torch.frexp(largest)  # mantissa in [.5, 1)
    exponent = exponent - 1 - _exponent_of(format) + (mantissa >= 1.75 / 2).to(exponent.dtype)
    return _as_exponents(torch.where(largest > 0, exponent + E8M0_BIAS, E8M0_BIAS), format)


def _exponent_of(format: FloatFormat) -> int:
    """floor(log2) of its largest value."""
    return 2 if format is FloatFormat.E2M1 else 8


def _as_exponents(biased: Tensor, format: FloatFormat) -> Tensor:
    """Stored exponents, none so large that the grid's last value would be beyond float32."""
    return biased.clamp(0, 2 * E8M0_BIAS - _exponent_of(format)).to(torch.uint8)


def _searched(
    groups: Tensor, rule: Tensor, scheme: FloatScheme, global_scale: Tensor | None, weights: Tensor | None
) -> Tensor:
    """The stored scales of least squared error `[rows, groups]`; the rule's own come first and win ties."""
    best = rule.to(torch.float32)
    least = _error(groups, rule, scheme, global_scale, weights)
    for candidate in _neighbours(rule, scheme):
        error = _error(groups, candidate, scheme, global_scale, weights)
        best = torch.where(error < least, candidate.to(torch.float32), best)
        least = torch.minimum(error, least)
    return best.to(rule.dtype)


def _neighbours(rule: Tensor, scheme: FloatScheme) -> list[Tensor]:
    wide = rule.to(torch.float32)
    if scheme.scale_format is ScaleFormat.E8M0:
        return [_as_exponents(wide + step, scheme.format) for step in _EXPONENT_STEPS]
    if scheme.scale_format is ScaleFormat.E4M3:
        return [(wide * share).clamp(_SMALLEST_E4M3, _LARGEST_E4M3).to(_E4M3) for share in _NVFP4_SHARES]
    return []


def _error(
    groups: Tensor, stored: Tensor, scheme: FloatScheme, global_scale: Tensor | None, weights: Tensor | None
) -> Tensor:
    """Squared error of each group `[rows, groups]`."""
    step = row_scales(stored, global_scale, scheme, len(groups)).unsqueeze(-1)
    difference = nearest_values_(groups / step, scheme.format).mul_(step).sub_(groups).square_()
    return (difference if weights is None else difference.mul_(weights)).sum(-1)
