"""GPTQ (Frantar et al., 2022, algorithm 1): round one input column at a time, let the later ones absorb the error.

Static groups: every group's grid comes from the original weights, up front and rounded to storage dtype, so columns
may be visited in any order (act-order) while groups stay contiguous and the file needs no group index.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.numerics.integer import Grid, choose_grid, round_half_even_, round_to_grid
from octavo.numerics.packed_tensor import PackedTensor
from octavo.numerics.scheme import IntegerScheme
from octavo.quantize.result import ModuleReport, QuantizedWeight, relative_error
from octavo.quantize.rtn import rtn
from octavo.quantize.statistics import InputStatistics

#: Shares of the mean diagonal added to it, tried in turn until the Cholesky factor exists.
DAMPING_STEPS = (1.0, 3.0, 10.0, 30.0, 100.0)
_BLOCK_COLUMNS = 128


@dataclass(frozen=True, slots=True)
class Inverse:
    """A prepared Hessian, shared by all linears with the same input.

    `order` `[inputs]` is the visiting order; `upper` `[inputs, inputs]` the upper Cholesky factor of the inverse in
    that order, None if no damping made one; `dead` bool `[inputs]` marks inputs that were always zero.
    """

    order: Tensor
    upper: Tensor | None
    dead: Tensor
    damping: float


def invert(hessian: Tensor, damping: float = 0.01, act_order: bool = True) -> Inverse:
    """Prepare `hessian` `[inputs, inputs]`: dead inputs get diagonal 1, then damping in steps (`damping` times
    `DAMPING_STEPS` of the mean diagonal) until Cholesky succeeds. The step used is recorded."""
    diagonal = hessian.diagonal()
    dead = diagonal <= 0
    live = torch.where(dead, torch.ones_like(diagonal), diagonal)
    order = torch.argsort(live.masked_fill(dead, 0), descending=True, stable=True)
    if not act_order:
        order = torch.arange(len(diagonal))
    matrix = hessian[order][:, order]
    base = live[order]
    used = damping
    for step in DAMPING_STEPS:
        used = damping * step
        matrix.diagonal().copy_(base + used * float(live[~dead].mean()) if bool((~dead).any()) else base)
        upper = _inverse_factor(matrix)
        if upper is not None:
            return Inverse(order, upper, dead, used)
    return Inverse(order, None, dead, used)


def _inverse_factor(matrix: Tensor) -> Tensor | None:
    """U, upper triangular, with inverse(matrix) = U' U; None if the matrix is not safely positive definite.

    With rows and columns reversed the matrix is L L'; U is the inverse of L, reversed back. One factor and one
    triangular solve, where inverting first and factoring the inverse would take three steps.
    """
    lower, info = torch.linalg.cholesky_ex(matrix.flip(0, 1))
    if int(info) != 0 or not bool(torch.isfinite(lower).all()):
        return None
    inverse = torch.linalg.solve_triangular(lower, torch.eye(len(matrix)), upper=False)
    return inverse.flip(0, 1).contiguous() if bool(torch.isfinite(inverse).all()) else None


def gptq(
    name: str,
    weight: Tensor,
    statistics: InputStatistics,
    inverse: Inverse,
    scheme: IntegerScheme,
    *,
    scale_dtype: torch.dtype = torch.float16,
    search: bool = True,
    keep_latent: bool = False,
) -> QuantizedWeight:
    """Quantize `weight` `[outputs, inputs]` against its inputs' `statistics`, prepared once as `inverse`.

    `keep_latent` also gives the weights that were rounded, errors of others fed into them: training starts there.
    Falls back to RTN, and says so in the report, if the Hessian could not be inverted.
    """
    weight = weight.to(torch.float32)
    if inverse.upper is None:
        reason = f"Hessian not positive definite up to damping {inverse.damping:g} ({statistics.num_tokens} tokens)"
        return rtn(name, weight, scheme, scale_dtype=scale_dtype, search=search, statistics=statistics, fallback=reason)
    live = weight.masked_fill(inverse.dead, 0.0)
    importance = statistics.hessian.diagonal()
    grid = choose_grid(live, scheme, scale_dtype=scale_dtype, search=search, importance=importance)
    codes, latent = _feed_back(live, inverse.order, inverse.upper, grid, scheme)
    packed = PackedTensor.from_codes(codes, grid.scale, grid.zero_point, scheme)
    nearest = PackedTensor.from_codes(round_to_grid(live, grid, scheme), grid.scale, grid.zero_point, scheme)
    report = ModuleReport(
        name=name,
        method="gptq",
        scheme=str(scheme),
        shape=packed.shape,
        num_tokens=statistics.num_tokens,
        num_lent_tokens=statistics.num_lent_tokens,
        damping=inverse.damping,
        num_dead_inputs=int(inverse.dead.sum()),
        error=relative_error(weight, packed.dequantize(), statistics.hessian),
        rtn_error=relative_error(weight, nearest.dequantize(), statistics.hessian),
    )
    return QuantizedWeight(packed, report, latent=_unsorted(latent, inverse.order) if keep_latent else None)


def _feed_back(
    weight: Tensor, order: Tensor, upper: Tensor, grid: Grid, scheme: IntegerScheme
) -> tuple[Tensor, Tensor]:
    """Signed int8 codes `[outputs, inputs]`, and as float32 rows in `order` (transposed) what they were rounded from.
    Works on rows of the transposed matrix: one input is one contiguous row.

    Within a block of columns a rank-1 update per column, then one product for everything behind the block.
    """
    num_inputs = weight.shape[1]
    remaining = weight.T[order].contiguous()
    codes = torch.empty_like(remaining)
    errors = torch.empty(_BLOCK_COLUMNS, weight.shape[0])
    scale = grid.scale.to(torch.float32).T.contiguous()
    zero = None if grid.zero_point is None else grid.zero_point.to(torch.float32).T.contiguous()
    groups = (order // (num_inputs // scale.shape[0])).tolist()
    pivots = upper.diagonal().tolist()
    for start in range(0, num_inputs, _BLOCK_COLUMNS):
        stop = min(start + _BLOCK_COLUMNS, num_inputs)
        for column in range(start, stop):
            value, step = remaining[column], scale[groups[column]]
            code = round_half_even_(torch.div(value, step, out=codes[column]))
            if zero is None:
                code.clamp_(scheme.lowest, scheme.highest)
                error = torch.addcmul(value, code, step, value=-1, out=errors[column - start])
            else:
                offset = zero[groups[column]]
                code.add_(offset).clamp_(scheme.lowest, scheme.highest)
                error = torch.addcmul(value, code - offset, step, value=-1, out=errors[column - start])
            error.div_(pivots[column])
            remaining[column + 1 : stop].addmm_(upper[column, column + 1 : stop, None], error[None], alpha=-1)
        remaining[stop:].addmm_(upper[start:stop, stop:].T, errors[: stop - start], alpha=-1)
    return _unsorted(codes.to(torch.int8), order), remaining


def _unsorted(rows: Tensor, order: Tensor) -> Tensor:
    """Rows `[inputs, outputs]` in visiting order -> `[outputs, inputs]`."""
    result = torch.empty_like(rows)
    result[order] = rows
    return result.T.contiguous()
