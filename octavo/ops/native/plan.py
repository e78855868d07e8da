"""What the native executor will occupy, from the model's shapes, before anything is allocated."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.core.errors import InvalidField
from octavo.ops.base import Attention, Model, Rope
from octavo.ops.executor_plan import ExecutorPlan, ExecutorUnavailable, StepLimits
from octavo.ops.kv_format import kv_format
from octavo.ops.native import _kernels
from octavo.ops.native.buffers import assign_slots
from octavo.ops.native.executor import check_block_size, kv_layers
from octavo.ops.native.instructions import Domain, Instruction, Matrix, RopeTable
from octavo.ops.native.lowering import lower
from octavo.ops.native.packed_model import num_threads
from octavo.ops.native.packing import packed_bytes
from octavo.ops.native.program import flat, matrices_of, row_bytes
from octavo.ops.native.recorder import most_experts_per_token, record
from octavo.ops.native.rope_tables import RopeTables, rope_bytes

_FLOAT = 4
#: Bounds on what the C++ program takes besides (native/program): parts of attention that wait to be joined, at most
#: this many tasks of this many queries; and each thread's own memory, some of it by inputs of the widest matrix.
_MOST_SPLIT_TASKS, _MOST_SPLIT_QUERIES, _MOST_QUERIES = 1024, 4, 16
_THREAD_BYTES, _THREAD_BYTES_PER_INPUT = 1 << 20, 1 << 10
#: What the allocator keeps beyond its requests, thread stacks, and the Python objects of a large step.
_ALLOCATOR_BYTES = 16 << 20


def plan_native(
    model: Model, block_size: int, limits: StepLimits, max_positions: int, kv_dtype: str, threads: int | None
) -> ExecutorPlan:
    """Bytes of `NativeExecutor` with these settings; no sequence is longer than `max_positions`.

    Raises `ExecutorUnavailable` for a model, a form of weights or a block size that it cannot compute.
    """
    check_block_size(block_size)
    calls = record(model)
    instructions = lower(calls)
    layers = model.attention_layers
    scratch_bytes = (
        _slot_bytes(instructions, limits, most_experts_per_token(calls))
        + _attention_bytes(layers)
        + num_threads(threads) * _thread_bytes(layers, instructions)
        + rope_bytes(_ropes(instructions), max_positions)
        + limits.max_num_logit_rows * model.vocab_size * _FLOAT
        + _ALLOCATOR_BYTES
    )
    return ExecutorPlan(
        weight_bytes=sum(_weight_bytes(matrix) for matrix in matrices_of(instructions)),
        scratch_bytes=scratch_bytes,
        block_bytes=_kernels.KvStore.bytes_per_block(kv_layers(layers), block_size, str(kv_format(kv_dtype, layers))),
    )


def _weight_bytes(matrix: Matrix) -> int:
    try:
        return packed_bytes(matrix.weight, matrix.group)
    except InvalidField as refused:
        raise ExecutorUnavailable(f"{matrix.name} has a form it cannot hold: {refused}") from refused


def _slot_bytes(instructions: Sequence[Instruction], limits: StepLimits, experts_per_token: int) -> int:
    rows = {
        Domain.TOKENS: limits.max_num_batched_tokens,
        Domain.LOGITS: limits.max_num_logit_rows,
        Domain.ROUTED: limits.max_num_batched_tokens * experts_per_token,
    }
    return sum(slot.bytes_per_row * rows[slot.domain] for slot in assign_slots(instructions, row_bytes))


def _attention_bytes(layers: Sequence[Attention]) -> int:
    heads_per_kv = max(layer.num_heads // layer.num_kv_heads for layer in layers)
    part_floats = _MOST_SPLIT_QUERIES * heads_per_kv * (max(layer.head_dim for layer in layers) + 2)
    num_parts = _MOST_SPLIT_TASKS + max(layer.num_kv_heads for layer in layers)
    return num_parts * (part_floats + 17) * _FLOAT


def _thread_bytes(layers: Sequence[Attention], instructions: Sequence[Instruction]) -> int:
    heads_per_kv = max(layer.num_heads // layer.num_kv_heads for layer in layers)
    row_floats = 8 * (max(layer.head_dim for layer in layers) + 64)
    widest = max(matrix.weight.shape[1] for matrix in matrices_of(instructions))
    return _THREAD_BYTES + widest * _THREAD_BYTES_PER_INPUT + _MOST_QUERIES * heads_per_kv * row_floats * _FLOAT


def _ropes(instructions: Sequence[Instruction]) -> list[Rope]:
    tables = RopeTables()
    for instruction in instructions:
        for argument in flat(instruction.arguments):
            if isinstance(argument, RopeTable) and argument.rope is not None:
                tables.id_of(argument.rope)
    return tables.ropes
