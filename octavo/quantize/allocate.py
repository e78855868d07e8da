"""Which option each group of modules gets: the multiple-choice knapsack, solved exactly.

Choose one option of every group so that the errors' sum is least and the bytes' sum is at most the budget. Dynamic
programming over bytes beyond the smallest choice (Kellerer, Pferschy, Pisinger 2004, section 11.5), in units of the
greatest common divisor of all differences; where that leaves too many states the unit grows and every option's bytes
are rounded up to it, so the budget is never exceeded, and what rounding left over is spent by single upgrades.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

#: Most states of the dynamic program: rounding costs 120 groups at most 0.3 % of the budget, before it is spent again.
MAX_STATES = 40_000

_Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Choice:
    """What an option of a group costs: bytes in the file, and the error it is expected to cause (any unit)."""

    num_bytes: int
    error: float


@dataclass(frozen=True, slots=True)
class Allocation:
    """`chosen[i]` indexes group i's options. `is_exact`: no other choice within the budget has a smaller error; else
    bytes were rounded up to `unit_bytes` for each group."""

    chosen: tuple[int, ...]
    num_bytes: int
    error: float
    is_exact: bool
    unit_bytes: int


def allocate(groups: Sequence[Sequence[Choice]], budget_bytes: int, max_states: int = MAX_STATES) -> Allocation | None:
    """The allocation of least error within `budget_bytes`; None if the smallest options are more. Among equal errors
    the one of fewest bytes."""
    smallest = [min(choice.num_bytes for choice in group) for group in groups]
    largest = sum(max(choice.num_bytes for choice in group) for group in groups)
    room = min(budget_bytes, largest) - sum(smallest)
    if room < 0:
        return None
    extra = [[choice.num_bytes - least for choice in group] for group, least in zip(groups, smallest, strict=True)]
    unit = math.gcd(*(each for group in extra for each in group)) or 1
    is_exact = room // unit < max_states
    if not is_exact:
        unit = -(-room // (max_states - 1))
    units = [[-(-each // unit) for each in group] for group in extra]
    errors = [[choice.error for choice in group] for group in groups]
    chosen = _solve(units, errors, room // unit)
    if not is_exact:
        chosen = _spend(chosen, extra, errors, room)
    return Allocation(
        tuple(chosen),
        sum(group[index].num_bytes for group, index in zip(groups, chosen, strict=True)),
        math.fsum(group[index].error for group, index in zip(groups, chosen, strict=True)),
        is_exact,
        unit,
    )


def bytes_within(groups: Sequence[Sequence[Choice]], max_error: float, max_states: int = MAX_STATES) -> int | None:
    """The fewest bytes with which an error of at most `max_error` can be had, to within one unit for each group; None
    if no choice is that good."""
    smallest = sum(min(choice.num_bytes for choice in group) for group in groups)
    room = sum(max(choice.num_bytes for choice in group) for group in groups) - smallest
    unit = max(1, -(-room // (max_states - 1)))
    units = [[-(-(each.num_bytes - min(c.num_bytes for c in group)) // unit) for each in group] for group in groups]
    least, _ = _least_errors(units, [[choice.error for choice in group] for group in groups], max_states + len(groups))
    within = np.flatnonzero(least <= max_error)
    return smallest + unit * int(within[0]) if len(within) else None


def _solve(units: list[list[int]], errors: list[list[float]], capacity: int) -> list[int]:
    """The option of each group, from the last to the first by the decisions that led to the least error."""
    least, decisions = _least_errors(units, errors, capacity)
    left = int(np.argmin(least))
    chosen = []
    for decision, group_units in zip(reversed(decisions), reversed(units), strict=True):
        chosen.append(int(decision[left]))
        left -= group_units[chosen[-1]]
    return chosen[::-1]


def _least_errors(
    units: list[list[int]], errors: list[list[float]], capacity: int
) -> tuple[_Floats, list[NDArray[np.int16]]]:
    """`least[u]` is the smallest error of all groups with at most u units; each group's option on the way there."""
    least: _Floats = np.zeros(capacity + 1)
    decisions = []
    for group_units, group_errors in zip(units, errors, strict=True):
        best: _Floats = np.full(capacity + 1, np.inf)
        decision = np.zeros(capacity + 1, dtype=np.int16)
        for index in _undominated(group_units, group_errors):
            cost = group_units[index]
            if cost > capacity:
                break
            candidate = least[: capacity + 1 - cost] + group_errors[index]
            better = candidate < best[cost:]
            np.copyto(best[cost:], candidate, where=better)
            np.copyto(decision[cost:], index, where=better)
        least = best
        decisions.append(decision)
    return least, decisions


def _undominated(units: list[int], errors: list[float]) -> list[int]:
    """Options that no other one beats in both, by ascending cost."""
    kept: list[int] = []
    for index in sorted(range(len(units)), key=lambda index: (units[index], errors[index])):
        if not kept or errors[index] < errors[kept[-1]]:
            kept.append(index)
    return kept


def _spend(chosen: list[int], extra: list[list[int]], errors: list[list[float]], room: int) -> list[int]:
    """Upgrades of single groups, the most error saved first, as long as the bytes left over allow any."""
    chosen = list(chosen)
    while True:
        left = room - sum(group[index] for group, index in zip(extra, chosen, strict=True))
        upgrades = [
            (errors[number][index] - errors[number][chosen[number]], number, index)
            for number, group in enumerate(extra)
            for index in range(len(group))
            if group[index] - group[chosen[number]] <= left and errors[number][index] < errors[number][chosen[number]]
        ]
        if not upgrades:
            return chosen
        _, number, index = min(upgrades)
        chosen[number] = index
