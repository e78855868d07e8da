"""Which experts a row uses, and with what weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Routing:
    """`chosen` int64 `[rows, experts_per_token]`: each row's experts by ascending id; `weights` float32, same shape."""

    chosen: Tensor
    weights: Tensor

    def groups(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """(expert, its rows int64 ascending, their weights `[rows of it, 1]`) by ascending id; experts without rows
        are left out."""
        experts_per_token = self.chosen.shape[1]
        order = torch.argsort(self.chosen.flatten(), stable=True)
        experts, counts = torch.unique_consecutive(self.chosen.flatten()[order], return_counts=True)
        weights = self.weights.flatten()[order, None]
        sizes = counts.tolist()
        pieces = zip((order // experts_per_token).split(sizes), weights.split(sizes), strict=True)
        for expert, (rows, of_rows) in zip(experts.tolist(), pieces, strict=True):
            yield expert, rows, of_rows


def route(logits: Tensor, experts_per_token: int, renormalize: bool) -> Routing:
    """Router logits float32 `[rows, experts]` -> the choice, as `Ops.experts` defines it.

    Sums run in a fixed order and every other operation is by element, so a row's bits depend on it alone."""
    probabilities = (logits - logits.amax(-1, keepdim=True)).exp_()
    probabilities /= probabilities.sum(-1, keepdim=True)
    ranked = torch.argsort(logits, dim=-1, descending=True, stable=True)  # stable: equal logits, lowest id first
    chosen = ranked[:, :experts_per_token].sort(dim=-1).values
    weights = probabilities.gather(1, chosen)
    if renormalize:
        total = weights[:, :1]
        for column in range(1, experts_per_token):
            total = total + weights[:, column : column + 1]
        weights = weights / total
    return Routing(chosen, weights)
