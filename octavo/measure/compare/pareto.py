"""Pareto fronts: which points no other point beats in everything."""

from __future__ import annotations

from collections.abc import Sequence


def pareto_front(costs: Sequence[Sequence[float]]) -> list[int]:
    """Indices of the points that no other dominates, in their order. A point dominates another if no cost of it is
    higher and one is lower; equal points stand side by side. `costs` `[points][objectives]`, less is better."""
    return [
        index
        for index, own in enumerate(costs)
        if not any(dominates(other, own) for place, other in enumerate(costs) if place != index)
    ]


def dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    pairs = list(zip(one, other, strict=True))
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)
