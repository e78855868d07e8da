"""How learning rates fall, how a ramp rises, and when to stop."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

#: (share of the steps done, 0 to 1) -> share of the learning rate.
Schedule = Callable[[float], float]


def cosine(done: float) -> float:
    """From 1 to 0 along half a cosine (Loshchilov and Hutter, 2017)."""
    return 0.5 * (1.0 + math.cos(math.pi * done))


def straight(done: float) -> float:
    """From 1 to 0 along a line (SignRound)."""
    return 1.0 - done


def ramp(done: float, share: float = 0.5) -> float:
    """From 0 to 1 along a line within the first `share` of the steps: how much of a weight is quantized."""
    return min(1.0, done / share)


#: A loss does not count as worse before this share of the steps: learning rates are high, and what they spoil heals.
_COUNTS_FROM = 0.5


@dataclass(slots=True)
class EarlyStop:
    """Stops when `patience` held-out losses in a row, of the later half of all steps, were no better than the best."""

    best: float
    patience: int
    num_worse: int = 0

    def is_better(self, loss: float, done: float) -> bool:
        """Whether `loss`, at this share of the steps, is the new best; NaN never is."""
        if loss < self.best:
            self.best, self.num_worse = loss, 0
            return True
        if done >= _COUNTS_FROM:
            self.num_worse += 1
        return False

    @property
    def stops(self) -> bool:
        return self.num_worse >= self.patience
