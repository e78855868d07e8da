"""The grid of a whole matrix, fixed before any code is chosen: what methods that choose codes one by one work on."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from octavo.numerics.float_grid import choose_float_grid
from octavo.numerics.integer import Grid, choose_grid, round_half_even_, round_to_grid
from octavo.numerics.packed_tensor import PackedTensor
from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.numerics.scheme import IntegerScheme, Scheme


class WeightGrid(Protocol):
    """A weight is a multiple of its group's step; which multiples there are is the grid."""

    def steps(self) -> Tensor:
        """Float32 `[rows, groups]`."""

    @property
    def inputs_per_step(self) -> int:
        """Inputs of a row that a column of `steps` is for; the last one may be for fewer."""

    def nearest_(self, multiples: Tensor, group: int) -> Tensor:
        """The nearest multiples of the grid, in place, for one input of every row: float32 `[rows]`, of `group`."""

    def pack(self, multiples: Tensor) -> QuantizedTensor:
        """From multiples that are on the grid, float32 `[rows, columns]`."""

    def round(self, weight: Tensor) -> QuantizedTensor:
        """Each weight's nearest value, `[rows, columns]`."""


def choose_weight_grid(
    weight: Tensor,
    scheme: Scheme,
    *,
    scale_dtype: torch.dtype = torch.float16,
    search: bool = True,
    importance: Tensor | None = None,
    global_scale: Tensor | None = None,
) -> WeightGrid:
    """As `choose_grid` or `choose_float_grid`, which say what is raised. `scale_dtype` is for integers, `global_scale`
    for NVFP4 alone."""
    if isinstance(scheme, IntegerScheme):
        grid = choose_grid(weight, scheme, scale_dtype=scale_dtype, search=search, importance=importance)
        return _IntegerWeightGrid(grid, scheme, weight.shape[1])
    return choose_float_grid(weight, scheme, global_scale=global_scale, search=search, importance=importance)


class _IntegerWeightGrid:
    """Multiples are codes less the zero point."""

    def __init__(self, grid: Grid, scheme: IntegerScheme, num_inputs: int) -> None:
        self._grid, self._scheme = grid, scheme
        self._zero = None if grid.zero_point is None else grid.zero_point.to(torch.float32)
        self._zero_of_group = None if self._zero is None else self._zero.T.contiguous()
        self.inputs_per_step = num_inputs // grid.scale.shape[1]

    def steps(self) -> Tensor:
        return self._grid.scale.to(torch.float32)

    def nearest_(self, multiples: Tensor, group: int) -> Tensor:
        round_half_even_(multiples)
        if self._zero_of_group is None:
            return multiples.clamp_(self._scheme.lowest, self._scheme.highest)
        zero = self._zero_of_group[group]
        return multiples.add_(zero).clamp_(self._scheme.lowest, self._scheme.highest).sub_(zero)

    def pack(self, multiples: Tensor) -> PackedTensor:
        if self._zero is not None:
            multiples = multiples + self._zero.repeat_interleave(self.inputs_per_step, dim=1)
        return self._of_codes(multiples.to(torch.int8))

    def round(self, weight: Tensor) -> PackedTensor:
        return self._of_codes(round_to_grid(weight, self._grid, self._scheme))

    def _of_codes(self, codes: Tensor) -> PackedTensor:
        return PackedTensor.from_codes(codes, self._grid.scale, self._grid.zero_point, self._scheme)
