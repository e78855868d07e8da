"""What a group of modules may become, and what each option would cost in divergence.

The error of an option is what its rounding does to the predictions to second order (`sensitivity`), of codes chosen by
the recipe's own method on a sample of the group's output rows: GPTQ rounds rows independently, so a sixth of the rows
tells what all of them would lose, at a sixth of the price.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from octavo.core.storage import write_json
from octavo.numerics.scheme import IntegerScheme
from octavo.ops.base import Linear
from octavo.quantize.bulk_ops import dense
from octavo.quantize.gptq import gptq, invert
from octavo.quantize.recipe import Recipe
from octavo.quantize.rtn import rtn
from octavo.quantize.sensitivity import Sensitivities
from octavo.quantize.statistics import InputStatistics

#: Output rows that are rounded to estimate an option's error, of all linears with one input together.
SAMPLED_ROWS = 128
#: Bits -> groups of inputs that are offered, None is one per row; of these, those that divide the inputs.
_LINEAR_GROUPS: dict[int, tuple[int | None, ...]] = {2: (32, 64), 3: (32, 64, 128), 4: (32, 64, 128, None), 8: (None,)}
_EMBEDDING_GROUPS: dict[int, tuple[int | None, ...]] = {2: (32,), 3: (32, 64), 4: (32, 64), 8: (None,)}
#: Bits at which zero points are offered: with more, a symmetric grid of the same bytes is as good.
_ZERO_POINT_BITS = (2, 3)


def linear_schemes(num_inputs: Sequence[int], zero_points: bool) -> list[IntegerScheme]:
    """What linears with these numbers of inputs may become together, fewest bits first."""
    return list(_schemes(_LINEAR_GROUPS, num_inputs, zero_points))


def embedding_schemes(num_inputs: int) -> list[IntegerScheme]:
    """What an embedding or a head may become."""
    return list(_schemes(_EMBEDDING_GROUPS, [num_inputs], False))


def _schemes(
    offered: Mapping[int, tuple[int | None, ...]], num_inputs: Sequence[int], zero_points: bool
) -> Iterator[IntegerScheme]:
    for bits, sizes in offered.items():
        fitting = [size for size in sizes if size is None or all(inputs % size == 0 for inputs in num_inputs)]
        for size in fitting or [16 if all(inputs % 16 == 0 for inputs in num_inputs) else None]:
            yield IntegerScheme(bits, size, True)
            if zero_points and bits in _ZERO_POINT_BITS:
                yield IntegerScheme(bits, size, False)


def group_errors(
    linears: Sequence[Linear],
    statistics: Mapping[str, InputStatistics],
    sensitivities: Sensitivities,
    schemes: Sequence[IntegerScheme],
    recipe: Recipe,
) -> list[float]:
    """Expected KL per token in nats of each scheme, to second order, all of `linears` rounded alike."""
    errors = [0.0] * len(schemes)
    for members in _by_input(linears, statistics):
        shared = statistics[members[0].name]
        weight = torch.cat([dense(linear.weight) for linear in members])
        importance = torch.cat([sensitivities.get(linear.name, torch.zeros(linear.num_outputs)) for linear in members])
        rows = _sampled_rows(weight, importance, shared.hessian)
        sample, share = weight[rows], len(weight) / len(rows)
        rounded = _Rounded(sample, shared, recipe)
        for index, scheme in enumerate(schemes):
            errors[index] += 0.5 * share * float((importance[rows] * rounded.row_errors(scheme)).sum())
    return errors


def _by_input(linears: Sequence[Linear], statistics: Mapping[str, InputStatistics]) -> list[list[Linear]]:
    """Linears that read the same value, together."""
    members: dict[int, list[Linear]] = {}
    for linear in linears:
        members.setdefault(id(statistics[linear.name]), []).append(linear)
    return list(members.values())


def _sampled_rows(weight: Tensor, importance: Tensor, hessian: Tensor) -> Tensor:
    """Indices of at most `SAMPLED_ROWS` rows: every n-th in the order of what losing the whole row would cost."""
    if len(weight) <= SAMPLED_ROWS:
        return torch.arange(len(weight))
    order = torch.argsort(importance * ((weight @ hessian) * weight).sum(1), stable=True)
    return order[((torch.arange(SAMPLED_ROWS) + 0.5) * (len(weight) / SAMPLED_ROWS)).long()]


class _Rounded:
    """Rows `[rows, inputs]` rounded by a recipe's method to one scheme after the other."""

    def __init__(self, weight: Tensor, statistics: InputStatistics, recipe: Recipe) -> None:
        self._weight, self._statistics, self._recipe = weight, statistics, recipe
        self._inverse = None if recipe.method == "rtn" else invert(statistics.hessian, recipe.damping, recipe.act_order)

    def row_errors(self, scheme: IntegerScheme) -> Tensor:
        """dW_o H dW_o' of every row."""
        dtype, search = self._recipe.torch_scale_dtype, self._recipe.search
        if self._inverse is None:
            rounded = rtn("", self._weight, scheme, scale_dtype=dtype, search=search, statistics=self._statistics)
        else:
            rounded = gptq("", self._weight, self._statistics, self._inverse, scheme, scale_dtype=dtype, search=search)
        difference = rounded.packed.dequantize() - self._weight
        return ((difference @ self._statistics.hessian) * difference).sum(1).clamp_min_(0)


class ErrorTable:
    """Errors by group and scheme, kept beside the statistics they were computed from: other budgets need no work."""

    def __init__(self, directory: Path, purpose: str, **settings: object) -> None:
        """`settings` are all that the errors depend on, the statistics themselves aside."""
        key = hashlib.sha256(json.dumps([purpose, settings], sort_keys=True, default=str).encode()).hexdigest()[:12]
        self._file = directory / f"{purpose}-{key}.json"
        self._errors: dict[str, dict[str, float]] = {}
        if self._file.exists():
            self._errors = json.loads(self._file.read_text())

    def get(self, group: str, schemes: Sequence[IntegerScheme]) -> list[float] | None:
        """Errors of `schemes`, None unless all of them are known."""
        known = self._errors.get(group, {})
        return [known[str(scheme)] for scheme in schemes] if all(str(scheme) in known for scheme in schemes) else None

    def put(self, group: str, schemes: Sequence[IntegerScheme], errors: Sequence[float]) -> None:
        """Remember, on disk too."""
        self._errors.setdefault(group, {}).update(zip(map(str, schemes), errors, strict=True))
        write_json(self._file, self._errors)
