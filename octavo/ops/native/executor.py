"""`NativeExecutor`: steps in, logits out, by a program of C++ kernels recorded from the model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from octavo.core.errors import CapacityError, InvalidField
from octavo.core.step import Step
from octavo.ops.base import Attention, Executor
from octavo.ops.executor_plan import ExecutorUnavailable, StepLimits
from octavo.ops.kv_format import head_scales, kv_format
from octavo.ops.native import _kernels
from octavo.ops.native.kernel_units import chosen_unit, kernel_units
from octavo.ops.native.packed_model import PackedModel, num_threads
from octavo.ops.native.program import ProgramBuilder
from octavo.ops.native.rope_tables import RopeTables
from octavo.ops.native.step_inputs import BlockTables, StepInputs

#: Positions in a block must fill whole registers of every instruction set.
BLOCK_SIZE_MULTIPLE = 16


class NativeExecutor(Executor):
    """Computes steps of a model over its own `num_blocks` blocks of `block_size` positions.

    `kv_dtype` is what keys and values are kept in, one of `kv_format.KV_DTYPES` but "auto". `threads` None: one for
    each processor this process may use; `isa` None: the best kernel unit that runs here.

    Raises `ExecutorUnavailable` for a block size that it cannot use, `InvalidField` for an `isa` that does not run
    here, and for a `kv_dtype` whose scales the checkpoint lacks.
    """

    def __init__(
        self,
        model: PackedModel,
        num_blocks: int,
        block_size: int,
        limits: StepLimits,
        *,
        kv_dtype: str = "bfloat16",
        threads: int | None = None,
        isa: str | None = None,
    ) -> None:
        check_block_size(block_size)
        self.unit = unit_named(isa)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.limits = limits
        self.vocab_size = model.vocab_size
        self.weight_bytes = model.weight_bytes
        self.team = _kernels.ThreadTeam(num_threads(threads))
        layers = model.attention_layers
        self.kv_format = kv_format(kv_dtype, layers)
        self.kv_store = _kernels.KvStore(
            kv_layers(layers), num_blocks, block_size, str(self.kv_format), head_scales(self.kv_format, layers)
        )
        max_rows, max_logit_rows = limits.max_num_batched_tokens, limits.max_num_logit_rows
        self.program = _kernels.Program(
            self.team, self.unit, self.kv_store, max_rows, max_logit_rows, model.experts_per_token
        )
        self._ropes = RopeTables()
        ProgramBuilder(self.program, model.matrices, self._ropes).build(model.instructions)
        self._tables = BlockTables(self.program)
        self._logits = torch.empty(limits.max_num_seqs, self.vocab_size)

    def execute(self, step: Step) -> Tensor:
        """Float32 logits `[step.num_logit_rows, vocabulary]` in chunk order: a view that the next call overwrites."""
        inputs = self._prepare(step)
        logits = self._logits_of(len(inputs.logit_rows))
        self.program.run(inputs.tokens, inputs.chunks, inputs.logit_rows, logits.numpy())
        return logits

    def profile(self, step: Step) -> list[float]:
        """Seconds of each of the program's instructions; computes the step as `execute` does."""
        inputs = self._prepare(step)
        logits = self._logits_of(len(inputs.logit_rows))
        return list(self.program.profile(inputs.tokens, inputs.chunks, inputs.logit_rows, logits.numpy()))

    def _prepare(self, step: Step) -> StepInputs:
        """What must be true before the program runs: copies done, tables and rotations there."""
        for source, target in step.block_copies:
            self.kv_store.copy_block(source, target)
        self._tables.follow(step)
        inputs = StepInputs.of(step)
        self._check_limits(inputs)
        if self._ropes.grow(inputs.num_positions):
            for index in range(len(self._ropes.ropes)):
                self.program.set_rope_table(index, *self._ropes.table(index))
        return inputs

    def _logits_of(self, num_rows: int) -> Tensor:
        if num_rows <= len(self._logits):
            return self._logits[:num_rows]
        return torch.empty(num_rows, self.vocab_size)

    def _check_limits(self, inputs: StepInputs) -> None:
        limits = self.limits
        for what, given, most in (
            ("tokens", len(inputs.tokens), limits.max_num_batched_tokens),
            ("rows of logits", len(inputs.logit_rows), limits.max_num_logit_rows),
        ):
            if given > most:
                raise CapacityError(f"a step of {given} {what}: this executor was made for at most {most}")


def kv_layers(attention_layers: Sequence[Attention]) -> list[tuple[int, int]]:
    """(kv heads, head size) of each layer."""
    return [(layer.num_kv_heads, layer.head_dim) for layer in attention_layers]


def check_block_size(block_size: int) -> None:
    if block_size % BLOCK_SIZE_MULTIPLE:
        raise ExecutorUnavailable(
            f"block_size {block_size}: the native executor's blocks hold a multiple of {BLOCK_SIZE_MULTIPLE} positions"
        )


def unit_named(isa: str | None) -> str:
    """The kernel unit to use: the best that runs here unless `isa` names one. Raises `InvalidField`."""
    if isa is None:
        return chosen_unit().name
    units = kernel_units()
    runnable = [unit.name for unit in units if unit.is_available]
    if isa not in runnable:
        reason = next((f" ({unit.reason})" for unit in units if unit.name == isa), "")
        raise InvalidField("isa", isa, f"instruction sets that run here: {', '.join(runnable)}{reason}")
    return isa
