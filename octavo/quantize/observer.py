"""The observer executor: the reference ops, which also see what enters each linear.

No hooks and no patched modules: calibration walks the same model description that serving runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from octavo.ops.base import Activation, Experts, GatedMlp, Linear, Norm, Rope
from octavo.ops.reference.batch import Batch
from octavo.ops.reference.routing import Routing
from octavo.quantize.bulk_ops import BulkOps, dense
from octavo.quantize.statistics import InputStatistics

#: Rows lent to an expert, for each of its inputs: with as many rows as inputs a Hessian overfits most, with four times
#: as many it is nearly that of all rows.
LENT_ROWS_PER_INPUT = 4
#: What all rows lent to an expert count for, in tokens of its own.
LENT_WEIGHT = 32.0
#: Rows computed at once: what a step leaves in between stays near the processor, and products of so many rows are
#: faster than products of all of them.
_SLICE_ROWS = 2048

#: Gets a linear and the statistics of its input, gives the linear to compute with from here on.
OnLinear = Callable[[Linear, InputStatistics], Linear]


class ObserverOps(BulkOps):
    """Computes like the reference; before each linear runs, `on_linear` sees its input's statistics and may put a
    quantized linear in its place, so whatever follows is computed from quantized outputs (true-sequential).

    Linears that read the same value (q/k/v, gate/up) get one `InputStatistics` object. All calibration tokens are
    rows of one pass; each segment is a sequence of its own in `batch`, so no row is padding.

    An expert is calibrated on the rows routed to it. One that gets fewer rows than it has inputs is lent others,
    evenly spaced over the text: they count in its statistics, lightly, and nowhere else. So few rows are not overfit,
    and an expert that no token chose is calibrated on what its layer computes (docs/decisions.md has figures).
    A router is not offered to `on_linear`: it keeps its weights.

    `mask` bool `[tokens]` says which rows statistics count; the others are read as context. None: all of them.
    """

    def __init__(self, on_linear: OnLinear, mask: Tensor | None = None) -> None:
        super().__init__()
        self._on_linear = on_linear
        self._mask = mask
        self._observed: Tensor | None = None
        self._statistics = InputStatistics(0)
        self._num_lent_rows = 0

    def linear(self, x: Tensor, linear: Linear) -> Tensor:
        linear = self._observe(x, linear)
        weight, y = dense(linear.weight).T, torch.empty(len(x), linear.num_outputs)
        for rows, part in _slices(x, y):
            torch.mm(rows if linear.inputs is None else linear.inputs.round(rows), weight, out=part)
            if linear.bias is not None:
                part += linear.bias
        return y

    def mlp(self, x: Tensor, mlp: GatedMlp, activation: Activation) -> Tensor:
        """Slice by slice of the rows: what gate and up give is never there as a whole."""
        gate, up = _dense(self._observe(x, mlp.gate)), _dense(self._observe(x, mlp.up))
        h = torch.empty(len(x), mlp.down.num_inputs)
        for rows, part in _slices(x, h):
            part.copy_(self.gated(super().linear(rows, gate), super().linear(rows, up), activation))
        return self.linear(h, mlp.down)

    def norm(self, x: Tensor, norm: Norm) -> Tensor:
        y = torch.empty_like(x)
        for rows, part in _slices(x, y):
            part.copy_(super().norm(rows, norm))
        return y

    def rope(self, x: Tensor, rope: Rope, head_dim: int, batch: Batch) -> Tensor:
        """In place: nobody else has `x`."""
        for rows, cos, sin in _slices(x, *batch.rotation(rope)):
            _rotate_(rows.view(len(rows), -1, head_dim), cos, sin)
        return x

    def _observe(self, x: Tensor, linear: Linear) -> Linear:
        """What is to be computed with in the place of `linear`, which reads `x`."""
        if x is not self._observed:
            self._observed = x
            num_own_rows = len(x) - self._num_lent_rows
            self._statistics = InputStatistics(x.shape[1])
            self._statistics.add(x[:num_own_rows], self._mask)
            self._statistics.lend(x[num_own_rows:], LENT_WEIGHT)
            self._statistics.check_finite(linear.name)
        return self._on_linear(linear, self._statistics)

    def route(self, x: Tensor, experts: Experts) -> Routing:
        return BulkOps().route(x, experts)

    def experts(self, x: Tensor, experts: Experts) -> Tensor:
        y = torch.zeros_like(x)
        groups = {expert: (rows, weights) for expert, rows, weights in self.route(x, experts).groups()}
        mask = torch.ones(len(x), dtype=torch.bool) if self._mask is None else self._mask
        whole_mask, num_counted = self._mask, int(mask.sum())
        for expert, mlp in enumerate(experts.mlps):
            rows, weights = groups.get(expert, (torch.empty(0, dtype=torch.int64), torch.empty(0, 1)))
            num_inputs = max(mlp.gate.num_inputs, mlp.down.num_inputs)
            self._mask = None if whole_mask is None else whole_mask[rows]
            lent = lent_rows(rows, mask, num_lent_rows(int(mask[rows].sum()), num_counted, num_inputs))
            self._num_lent_rows = len(lent)
            result = self.mlp(x[torch.cat([rows, lent])], mlp, experts.activation)
            y.index_add_(0, rows, result[: len(rows)].mul_(weights))
        self._num_lent_rows, self._mask = 0, whole_mask
        return y


def _slices(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same rows of all, some at a time."""
    return zip(*(tensor.split(_SLICE_ROWS) for tensor in tensors), strict=True)


def _dense(linear: Linear) -> Linear:
    """Unpacked once, not for every slice."""
    return replace(linear, weight=dense(linear.weight))


def _rotate_(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """`ReferenceOps.rope` of x `[rows, heads, head_dim]`, in place."""
    half = cos.shape[-1]
    first, second = x[..., :half], x[..., half : 2 * half]
    kept = first.clone()
    first.mul_(cos).addcmul_(second, sin, value=-1)
    second.mul_(cos).addcmul_(kept, sin)


def num_lent_rows(num_own_rows: int, num_rows: int, num_inputs: int) -> int:
    """How many of the other rows an expert is lent: none if it has as many of its own as inputs."""
    if num_own_rows >= num_inputs:
        return 0
    return min(num_rows - num_own_rows, LENT_ROWS_PER_INPUT * num_inputs)


def lent_rows(own: Tensor, mask: Tensor, count: int) -> Tensor:
    """`count` rows, evenly spaced among those that `mask` bool `[rows]` counts and that are not in `own`; int64."""
    is_other = mask.clone()
    is_other[own] = False
    others = is_other.nonzero().flatten()
    return others[torch.arange(count) * len(others) // max(1, count)]
