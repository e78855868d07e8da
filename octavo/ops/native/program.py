"""From instructions to a program in C++: memory for values, weights in the kernels' layout, rotations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import singledispatchmethod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from octavo.ops.base import Attention
from octavo.ops.executor_plan import ExecutorUnavailable
from octavo.ops.native import _kernels
from octavo.ops.native.buffers import assign_slots
from octavo.ops.native.input_form import Grid, activation_group
from octavo.ops.native.instructions import Instruction, Matrix, RopeTable, Value, Vector
from octavo.ops.native.rope_tables import RopeTables

#: A weight as the kernels read it.
PackedWeight = Any


def row_bytes(value: Value) -> int:
    """Bytes that one row of a value takes."""
    if value.form.sum_group is None:
        return int(_kernels.Program.float_row_bytes(value.features))
    return int(_kernels.Program.quantized_row_bytes(value.features, value.form.sum_group))


def matrices_of(instructions: Iterable[Instruction]) -> list[Matrix]:
    """Every weight once, in the order of first use, with the group that it is multiplied in: a tied embedding and head
    are one. Raises `ExecutorUnavailable` for a weight that is multiplied in two."""
    found: dict[int, Matrix] = {}
    for instruction in instructions:
        for matrix in flat(instruction.arguments):
            if isinstance(matrix, Matrix):
                known = found.setdefault(id(matrix.weight), matrix)
                if known.group is None:
                    found[id(matrix.weight)] = matrix
                elif matrix.group not in (None, known.group):
                    raise ExecutorUnavailable(
                        f"{matrix.name} shares its weight with {known.name}, not its inputs' groups"
                    )
    return [_with_group(matrix) for matrix in found.values()]


def _with_group(matrix: Matrix) -> Matrix:
    """A weight that nothing multiplies, such as an embedding of its own, is packed as if a linear did."""
    return matrix if matrix.group else replace(matrix, group=activation_group(matrix.weight))


def flat(arguments: Sequence[Any]) -> Iterator[Any]:
    """Arguments with those inside lists and tuples."""
    for argument in arguments:
        if isinstance(argument, list | tuple):
            yield from flat(argument)
        else:
            yield argument


class ProgramBuilder:
    """Appends instructions to a C++ program, whose `slot`s and values it makes first.

    `matrices` are packed weights by the id of the weight they were made from.
    """

    def __init__(self, program: _kernels.Program, matrices: dict[int, PackedWeight], ropes: RopeTables) -> None:
        self.program = program
        self.matrices = matrices
        self.ropes = ropes
        self._values: dict[Value, int] = {}

    def build(self, instructions: Sequence[Instruction]) -> None:
        for slot in assign_slots(instructions, row_bytes):
            slot_id = self.program.slot(slot.bytes_per_row, str(slot.domain))
            for value in slot.values:
                self._values[value] = self._add_value(slot_id, value)
        for instruction in instructions:
            append = getattr(self.program, instruction.kind)
            append(instruction.name, *(self.resolve(argument) for argument in instruction.arguments))

    def _add_value(self, slot_id: int, value: Value) -> int:
        form = value.form
        scale = (str(form.source), form.scale)
        match form.grid:
            case Grid.FLOAT32:
                return int(self.program.float_rows(slot_id, value.features))
            case Grid.INT8:
                assert form.group is not None
                return int(self.program.quantized_rows(slot_id, value.features, form.group, *scale))
        return int(self.program.fp8_rows(slot_id, value.features, str(form.grid), form.group or 0, *scale))

    @singledispatchmethod
    def resolve(self, argument: Any) -> Any:
        """What the program takes for an instruction's argument; plain numbers and names as they are."""
        return argument

    @resolve.register
    def _(self, arguments: list) -> list[Any]:
        return [self.resolve(each) for each in arguments]

    @resolve.register
    def _(self, arguments: tuple) -> tuple[Any, ...]:
        return tuple(self.resolve(each) for each in arguments)

    @resolve.register
    def _(self, value: Value) -> int:
        return self._values[value]

    @resolve.register
    def _(self, matrix: Matrix) -> PackedWeight:
        return self.matrices[id(matrix.weight)]

    @resolve.register
    def _(self, vector: Vector) -> NDArray[np.float32] | None:
        return None if vector.values is None else vector.values.to(torch.float32).contiguous().numpy()

    @resolve.register
    def _(self, table: RopeTable) -> int:
        if table.rope is None:
            return -1
        known = len(self.ropes.ropes)
        index = self.ropes.id_of(table.rope)
        if index == known:
            self.program.rope_table(len(table.rope.inverse_frequencies))
        return index

    @resolve.register
    def _(self, attention: Attention) -> _kernels.AttentionShape:
        return _kernels.AttentionShape(
            attention.num_heads,
            attention.num_kv_heads,
            attention.head_dim,
            attention.scale,
            attention.softcap or 0.0,
            attention.window or 0,
        )
