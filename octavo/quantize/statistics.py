"""What is known about the inputs of a linear: their second moment, by token count."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.core.errors import OctavoError

#: Rows multiplied at once: bounds the float32 copy of a wide input.
_CHUNK_ROWS = 4096
#: Rows of the Hessian computed at once.
_BAND_INPUTS = 192


class InputStatistics:
    """Running mean of x x' over tokens, float32 `[inputs, inputs]` (GPTQ's Hessian up to a factor of 2, which
    cancels). Weighting is by token, never by batch; rows that `mask` excludes count nowhere. `mean_magnitude` and
    `largest_magnitude` are those of |x|, float32 `[inputs]`."""

    def __init__(self, num_inputs: int) -> None:
        self.hessian = torch.zeros(num_inputs, num_inputs)
        self.mean_magnitude = torch.zeros(num_inputs)
        self.largest_magnitude = torch.zeros(num_inputs)
        self.num_tokens = 0
        self.num_lent_tokens = 0
        self._weight = 0.0

    @classmethod
    def restore(
        cls, hessian: Tensor, mean_magnitude: Tensor, largest_magnitude: Tensor, num_tokens: int, num_lent_tokens: int
    ) -> InputStatistics:
        """Statistics that were stored; nothing can be added to them."""
        restored = cls(0)
        restored.hessian, restored.mean_magnitude = hessian, mean_magnitude
        restored.largest_magnitude = largest_magnitude
        restored.num_tokens, restored.num_lent_tokens = num_tokens, num_lent_tokens
        return restored

    @property
    def largest(self) -> float:
        """The largest magnitude seen in any input."""
        return float(self.largest_magnitude.max()) if len(self.largest_magnitude) else 0.0

    def add(self, x: Tensor, mask: Tensor | None = None) -> None:
        """Add the rows of `x` `[tokens, inputs]`; `mask` bool `[tokens]` keeps only real tokens."""
        if mask is not None:
            x = x[mask]
        self._add(x, 1.0)
        self.num_tokens += len(x)

    def lend(self, x: Tensor, weight: float) -> None:
        """Add rows that are not this linear's own; together they count as `weight` tokens."""
        if len(x):
            self._add(x, weight / len(x))
        self.num_lent_tokens += len(x)

    def _add(self, x: Tensor, row_weight: float) -> None:
        for start in range(0, x.shape[0], _CHUNK_ROWS):
            rows = x[start : start + _CHUNK_ROWS].to(torch.float32)
            magnitude = rows.abs()
            self.largest_magnitude = torch.maximum(self.largest_magnitude, magnitude.amax(0))
            total = self._weight + row_weight * rows.shape[0]
            self.mean_magnitude.mul_(self._weight / total).add_(magnitude.sum(0), alpha=row_weight / total)
            self._add_upper_products(rows, self._weight / total, row_weight / total)
            self._weight = total
        self.hessian.copy_(self.hessian.triu() + self.hessian.triu(1).T)

    def _add_upper_products(self, rows: Tensor, kept: float, added: float) -> None:
        """hessian = kept * hessian + added * rows' rows, bands of its upper triangle only: two thirds of the work."""
        for first in range(0, rows.shape[1], _BAND_INPUTS):
            band = self.hessian[first : first + _BAND_INPUTS, first:]
            band.addmm_(rows[:, first : first + _BAND_INPUTS].T, rows[:, first:], beta=kept, alpha=added)

    def check_finite(self, name: str) -> None:
        """Raise `OctavoError` if the inputs of module `name` were not finite: no method can calibrate on them."""
        if not bool(torch.isfinite(self.hessian.diagonal()).all()):
            raise OctavoError(f"{name}: its inputs on the calibration text are not finite; the source model overflows")
