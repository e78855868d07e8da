"""A step as the program takes it: plain lists, and what changed in block tables since the step before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from octavo.core.step import Step
from octavo.ops.native import _kernels


@dataclass(frozen=True, slots=True)
class StepInputs:
    """Rows are tokens, chunk after chunk; `chunks` are (sequence id, first position, tokens); `logit_rows` index rows,
    ascending."""

    tokens: list[int]
    chunks: list[tuple[int, int, int]]
    logit_rows: list[int]

    @classmethod
    def of(cls, step: Step) -> StepInputs:
        tokens: list[int] = []
        logit_rows: list[int] = []
        chunks = []
        for chunk in step.chunks:
            first_row = len(tokens)
            tokens += chunk.tokens
            chunks.append((chunk.sequence_id, chunk.start, len(chunk.tokens)))
            logit_rows += [first_row + row for row in chunk.logit_rows]
        return cls(tokens, chunks, logit_rows)

    @property
    def num_positions(self) -> int:
        """Positions that the longest sequence has after the step."""
        return max((start + length for _, start, length in self.chunks), default=0)


class BlockTables:
    """Keeps a program's copies of block tables as the steps' tables are, by sending what is new."""

    def __init__(self, program: _kernels.Program) -> None:
        self._program = program
        self._known: dict[int, tuple[int, int]] = {}  # sequence id -> (epoch, entries)

    def follow(self, step: Step) -> None:
        for sequence_id in step.ended_sequences:
            if self._known.pop(sequence_id, None) is not None:
                self._program.forget(sequence_id)
        for sequence_id, first, blocks in self._changes(step):
            self._program.set_block_table(sequence_id, first, blocks)

    def _changes(self, step: Step) -> Iterator[tuple[int, int, list[int]]]:
        """(sequence id, first entry, entries from there on) of each table that is not as it was."""
        for chunk in step.chunks:
            table = chunk.block_table
            epoch, first = self._known.get(chunk.sequence_id, (-1, 0))
            if epoch != table.epoch:
                first = 0
            elif first == len(table):
                continue
            self._known[chunk.sequence_id] = (table.epoch, len(table))
            yield chunk.sequence_id, first, table.blocks[first:]
