"""What is known about the inputs of a linear: their second moment, by token count."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.core.errors import OctavoError

#: Rows multiplied at once: bounds the float32 copy of a wide input.
_CHUNK_ROWS = 4096


class InputStatistics:
    """Running mean of x x' over tokens, float32 `[inputs, inputs]` (GPTQ's Hessian up to a factor of 2, which
    cancels). Weighting is by token, never by batch; rows that `mask` excludes count nowhere. `num_lent_tokens` of the
    tokens were routed to other experts."""

    def __init__(self, num_inputs: int, num_lent_tokens: int = 0) -> None:
        self.hessian = torch.zeros(num_inputs, num_inputs)
        self.num_tokens = 0
        self.num_lent_tokens = num_lent_tokens

    def add(self, x: Tensor, mask: Tensor | None = None) -> None:
        """Add the rows of `x` `[tokens, inputs]`; `mask` bool `[tokens]` keeps only real tokens."""
        if mask is not None:
            x = x[mask]
        for start in range(0, x.shape[0], _CHUNK_ROWS):
            rows = x[start : start + _CHUNK_ROWS].to(torch.float32)
            total = self.num_tokens + rows.shape[0]
            self.hessian.addmm_(rows.T, rows, beta=self.num_tokens / total, alpha=1.0 / total)
            self.num_tokens = total

    def check_finite(self, name: str) -> None:
        """Raise `OctavoError` if the inputs of module `name` were not finite: no method can calibrate on them."""
        if not bool(torch.isfinite(self.hessian.diagonal()).all()):
            raise OctavoError(f"{name}: its inputs on the calibration text are not finite; the source model overflows")
