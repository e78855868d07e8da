"""How close a program is to what this machine allows, instruction by instruction.

The roofline (Williams, Waterman, Patterson 2009): an instruction that moves `num_bytes` and computes `num_operations`
takes at least the longer of bytes over bandwidth and operations over rate. Its share is that time over the measured
one. The rate is that of int8 products; what computes with floats (attention, dense weights) is held against it too, so
its share reads lower than what floats allow.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from octavo.core.block_table import BlockTable
from octavo.core.step import Chunk, Step
from octavo.ops.native import _kernels
from octavo.ops.native.executor import NativeExecutor

#: Read for the bandwidth: what one step of a small model reads, and more than most last-level caches of one core hold.
_BANDWIDTH_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """Measured with the executor's own threads: bytes read a second, int8 operations a second (a multiplication and an
    addition are two)."""

    bytes_per_second: float
    operations_per_second: float

    @classmethod
    def measure(cls, executor: NativeExecutor) -> MachineLimits:
        return cls(
            _kernels.measure_bandwidth(executor.team, _BANDWIDTH_BYTES),
            _kernels.measure_dot_rate(executor.team, executor.unit),
        )

    def least_seconds(self, num_bytes: float, num_operations: float) -> float:
        return max(num_bytes / self.bytes_per_second, num_operations / self.operations_per_second)


@dataclass(frozen=True, slots=True)
class InstructionTime:
    """One instruction in one step: `seconds` is the median of several runs."""

    name: str
    kind: str
    weights: str
    num_bytes: float
    num_operations: float
    seconds: float
    least_seconds: float

    @property
    def share(self) -> float:
        """Of the roofline: 1 is as fast as the machine allows."""
        return self.least_seconds / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class ProgramProfile:
    """A step of `num_rows` tokens: that many sequences with one token each, or one prompt's chunk; `context` positions
    stand before them."""

    num_rows: int
    context: int
    is_prefill: bool
    limits: MachineLimits
    instructions: list[InstructionTime]

    @property
    def seconds(self) -> float:
        return sum(each.seconds for each in self.instructions)

    @property
    def share(self) -> float:
        return sum(each.least_seconds for each in self.instructions) / self.seconds

    def by_kind(self) -> list[InstructionTime]:
        """Sums over instructions of one kind, the slowest first."""
        kinds: dict[str, list[InstructionTime]] = {}
        for each in self.instructions:
            kinds.setdefault(each.kind, []).append(each)
        return sorted((_sum(kind, group) for kind, group in kinds.items()), key=lambda each: -each.seconds)


def profile_program(
    executor: NativeExecutor, num_rows: int, context: int, is_prefill: bool = False, num_repeats: int = 9
) -> ProgramProfile:
    """Time each instruction of a step; keys and values of the context are whatever the blocks hold.

    Raises `CapacityError` for a step that the executor was not made for.
    """
    step = example_step(executor, num_rows, context, is_prefill)
    num_sequences = 1 if is_prefill else num_rows
    runs = [executor.profile(step) for _ in range(num_repeats + 2)][2:]
    costs = executor.program.costs(num_rows, context, num_sequences, num_sequences)
    limits = MachineLimits.measure(executor)
    instructions = [
        InstructionTime(
            facts["name"],
            facts["kind"],
            facts["weights"],
            num_bytes,
            num_operations,
            statistics.median(run[index] for run in runs),
            limits.least_seconds(num_bytes, num_operations),
        )
        for index, (facts, (num_bytes, num_operations)) in enumerate(
            zip(executor.program.instructions(), costs, strict=True)
        )
    ]
    return ProgramProfile(num_rows, context, is_prefill, limits, instructions)


def example_step(executor: NativeExecutor, num_rows: int, context: int, is_prefill: bool) -> Step:
    """Blocks serve several sequences where there are too few: where they lie matters, what they hold does not."""
    length = context + (num_rows if is_prefill else 1)
    blocks_each = -(-length // executor.block_size)
    if is_prefill:
        tokens = [row % executor.vocab_size for row in range(num_rows)]
        return Step([Chunk(-1, tokens, context, BlockTable(range(blocks_each)), [num_rows - 1])])
    tables = _tables(num_rows, blocks_each, executor.num_blocks)
    return Step([Chunk(-1 - row, [row % executor.vocab_size], context, table, [0]) for row, table in enumerate(tables)])


def _tables(num_sequences: int, blocks_each: int, num_blocks: int) -> Iterable[BlockTable]:
    for sequence in range(num_sequences):
        first = sequence * blocks_each
        yield BlockTable((first + index) % num_blocks for index in range(blocks_each))


def _sum(kind: str, group: Sequence[InstructionTime]) -> InstructionTime:
    weights = list(dict.fromkeys(each.weights for each in group))
    return InstructionTime(
        name=f"{len(group)} x",
        kind=kind,
        weights=weights[0] if len(weights) == 1 else f"{len(weights)} different",
        num_bytes=sum(each.num_bytes for each in group),
        num_operations=sum(each.num_operations for each in group),
        seconds=sum(each.seconds for each in group),
        least_seconds=sum(each.least_seconds for each in group),
    )
