"""What is known about the inputs of a linear: their second moment, by token count."""

from __future__ import annotations

import torch
from torch import Tensor

#: Rows multiplied at once: bounds the float32 copy of a wide input.
_CHUNK_ROWS = 4096


class InputStatistics:
    """Running mean of x x' over tokens, float32 `[inputs, inputs]` (GPTQ's Hessian up to a factor of 2, which
    cancels). Weighting is by token, never by batch; rows that `mask` excludes count nowhere."""

    def __init__(self, num_inputs: int) -> None:
        self.hessian = torch.zeros(num_inputs, num_inputs)
        self.num_tokens = 0

    def add(self, x: Tensor, mask: Tensor | None = None) -> None:
        """Add the rows of `x` `[tokens, inputs]`; `mask` bool `[tokens]` keeps only real tokens."""
        if mask is not None:
            x = x[mask]
        for start in range(0, x.shape[0], _CHUNK_ROWS):
            rows = x[start : start + _CHUNK_ROWS].to(torch.float32)
            total = self.num_tokens + rows.shape[0]
            self.hessian.addmm_(rows.T, rows, beta=self.num_tokens / total, alpha=1.0 / total)
            self.num_tokens = total

    def overflowing_inputs(self, limit: float) -> int:
        """Inputs whose root mean square exceeds `limit` (e.g. float16's largest number)."""
        return int((self.hessian.diagonal() > limit * limit).sum())
