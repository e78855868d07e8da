"""How far one model's predictions are from another's, and which way is closer; never all logits at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear, log_softmax

#: Logits that exist at once: 64 MiB, a few times over.
_CHUNK_LOGITS = 1 << 24


@dataclass(frozen=True, slots=True)
class Head:
    """From normed hidden states `[rows, hidden]` to logits: `weight` float32 `[vocabulary, hidden]`."""

    weight: Tensor
    bias: Tensor | None
    softcap: float | None

    def logits(self, rows: Tensor) -> Tensor:
        raw = linear(rows, self.weight, self.bias)
        return raw if self.softcap is None else raw.div_(self.softcap).tanh_().mul_(self.softcap)

    def pull_back(self, gradient: Tensor, logits: Tensor) -> Tensor:
        """The gradient of `rows` from that of `logits`."""
        if self.softcap is not None:
            gradient = gradient * (1.0 - (logits / self.softcap).square())
        return gradient @ self.weight


def divergence(student: Tensor, student_head: Head, teacher: Tensor, teacher_head: Head) -> tuple[float, Tensor]:
    """Mean of KL(teacher || student) in nats a row, and its gradient for `student`: normed hidden states of both models
    `[rows, hidden]`. (Hinton et al., 2015, at temperature 1.)"""
    gradient, total = torch.empty_like(student), 0.0
    step = max(1, _CHUNK_LOGITS // len(student_head.weight))
    for first in range(0, len(student), step):
        rows = slice(first, first + step)
        wanted = log_softmax(teacher_head.logits(teacher[rows]), -1)
        logits = student_head.logits(student[rows])
        log_p = log_softmax(logits, -1)
        q = wanted.exp()
        total += float((q * wanted.sub_(log_p)).sum(dtype=torch.float64))
        gradient[rows] = student_head.pull_back(log_p.exp_().sub_(q).div_(len(student)), logits)
    return total / len(student), gradient
