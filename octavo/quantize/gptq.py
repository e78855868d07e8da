"""GPTQ (Frantar et al., 2022, algorithm 1): round one input column at a time, let the later ones absorb the error.

Static groups: every group's grid comes from the original weights, up front and rounded to storage dtype, so columns
may be visited in any order (act-order) while groups stay contiguous and the file needs no group index. For FP8 and
FP4 grids as for integers (MR-GPTQ, Egiazarian et al. 2025).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from octavo.numerics.scheme import Scheme
from octavo.numerics.weight_grid import WeightGrid, choose_weight_grid
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
    scheme: Scheme,
    *,
    scale_dtype: torch.dtype = torch.float16,
    search: bool = True,
    keep_latent: bool = False,
    global_scale: Tensor | None = None,
) -> QuantizedWeight:
    """Quantize `weight` `[outputs, inputs]` against its inputs' `statistics`, prepared once as `inverse`.

    `keep_latent` also gives the weights that were rounded, errors of others fed into them: training starts there.
    `global_scale` is what fused members of an NVFP4 scheme share.
    Falls back to RTN, and says so in the report, if the Hessian could not be inverted.
    """
    weight = weight.to(torch.float32)
    importance = statistics.hessian.diagonal()
    options: dict[str, Any] = {"scale_dtype": scale_dtype, "search": search, "global_scale": global_scale}
    if inverse.upper is None:
        reason = f"Hessian not positive definite up to damping {inverse.damping:g} ({statistics.num_tokens} tokens)"
        return rtn(name, weight, scheme, **options, statistics=statistics, fallback=reason)
    live = weight.masked_fill(inverse.dead, 0.0)
    grid = choose_weight_grid(live, scheme, **options, importance=importance)
    multiples, latent = _feed_back(live, inverse.order, inverse.upper, grid)
    packed = grid.pack(_unsorted(multiples, inverse.order))
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
        rtn_error=relative_error(weight, grid.round(live).dequantize(), statistics.hessian),
    )
    return QuantizedWeight(packed, report, latent=_unsorted(latent, inverse.order) if keep_latent else None)


def _feed_back(weight: Tensor, order: Tensor, upper: Tensor, grid: WeightGrid) -> tuple[Tensor, Tensor]:
    """Multiples of the grid's steps, and what they were rounded from: float32 `[inputs, outputs]` in `order`. One input
    is one contiguous row.

    Within a block of columns a rank-1 update per column, then one product for everything behind the block.
    """
    num_inputs = weight.shape[1]
    remaining = weight.T[order].contiguous()
    multiples = torch.empty_like(remaining)
    errors = torch.empty(_BLOCK_COLUMNS, weight.shape[0])
    steps = grid.steps().T.contiguous()
    groups = (order // grid.inputs_per_step).tolist()
    pivots = upper.diagonal().tolist()
    for start in range(0, num_inputs, _BLOCK_COLUMNS):
        stop = min(start + _BLOCK_COLUMNS, num_inputs)
        for column in range(start, stop):
            value, step = remaining[column], steps[groups[column]]
            multiple = grid.nearest_(torch.div(value, step, out=multiples[column]), groups[column])
            error = torch.addcmul(value, multiple, step, value=-1, out=errors[column - start])
            error.div_(pivots[column])
            remaining[column + 1 : stop].addmm_(upper[column, column + 1 : stop, None], error[None], alpha=-1)
        remaining[stop:].addmm_(upper[start:stop, stop:].T, errors[: stop - start], alpha=-1)
    return multiples, remaining


def _unsorted(rows: Tensor, order: Tensor) -> Tensor:
    """Rows `[inputs, outputs]` in visiting order -> `[outputs, inputs]`."""
    result = torch.empty_like(rows)
    result[order] = rows
    return result.T.contiguous()
