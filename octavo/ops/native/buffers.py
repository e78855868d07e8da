"""Buffers: values whose lifetimes do not overlap share memory (linear scan, Poletto and Sarkar 1999)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from octavo.ops.native.instructions import Domain, Instruction, Value


@dataclass(slots=True)
class Slot:
    """An area of memory with `bytes_per_row` for each row of `domain`; `values` live in it one after the other."""

    domain: Domain
    bytes_per_row: int
    values: list[Value] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Lifetime:
    """Instructions `[first, last]` that make, read or change a value."""

    value: Value
    first: int
    last: int


def lifetimes(instructions: Sequence[Instruction]) -> list[Lifetime]:
    """Of every value, by the instruction that makes it."""
    first: dict[Value, int] = {}
    last: dict[Value, int] = {}
    for index, instruction in enumerate(instructions):
        for value in (*instruction.reads, *instruction.writes):
            first.setdefault(value, index)
            last[value] = index
    return [Lifetime(value, index, last[value]) for value, index in first.items()]


def assign_slots(instructions: Sequence[Instruction], row_bytes: Callable[[Value], int]) -> list[Slot]:
    """Slots for all values. `row_bytes(value)` is what one row takes.

    A slot is free again after the last instruction that touches its value; an instruction's results never lie in the
    memory of what it reads. Of the free slots the tightest that fits is taken, or else the widest, which grows.
    """
    slots: list[Slot] = []
    busy: list[tuple[int, Slot]] = []
    for life in lifetimes(instructions):
        busy = [(last, slot) for last, slot in busy if last >= life.first]
        occupied = {id(slot) for _, slot in busy}
        free = [slot for slot in slots if id(slot) not in occupied and slot.domain is life.value.domain]
        wanted = row_bytes(life.value)
        slot = _best(free, wanted)
        if slot is None:
            slot = Slot(life.value.domain, wanted)
            slots.append(slot)
        slot.bytes_per_row = max(slot.bytes_per_row, wanted)
        slot.values.append(life.value)
        busy.append((life.last, slot))
    return slots


def _best(free: Sequence[Slot], wanted: int) -> Slot | None:
    fitting = [slot for slot in free if slot.bytes_per_row >= wanted]
    if fitting:
        return min(fitting, key=lambda slot: slot.bytes_per_row)
    return max(free, key=lambda slot: slot.bytes_per_row, default=None)
