"""The observer executor: the reference ops, which also see what enters each linear.

No hooks and no patched modules: calibration walks the same model description that serving runs.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from octavo.ops.base import Linear
from octavo.quantize.bulk_ops import BulkOps
from octavo.quantize.statistics import InputStatistics

#: Gets a linear and the statistics of its input, gives the linear to compute with from here on.
OnLinear = Callable[[Linear, InputStatistics], Linear]


class ObserverOps(BulkOps):
    """Computes like the reference; before each linear runs, `on_linear` sees its input's statistics and may put a
    quantized linear in its place, so whatever follows is computed from quantized outputs (true-sequential).

    Linears that read the same value (q/k/v, gate/up) get one `InputStatistics` object. All calibration tokens are
    rows of one pass; each segment is a sequence of its own in `batch`, so no row is padding.
    """

    def __init__(self, on_linear: OnLinear) -> None:
        super().__init__()
        self._on_linear = on_linear
        self._observed: Tensor | None = None
        self._statistics = InputStatistics(0)

    def linear(self, x: Tensor, linear: Linear) -> Tensor:
        if x is not self._observed:
            self._observed = x
            self._statistics = InputStatistics(x.shape[1])
            self._statistics.add(x)
            self._statistics.check_finite(linear.name)
        return super().linear(x, self._on_linear(linear, self._statistics))
