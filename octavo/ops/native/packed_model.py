"""A model as the kernels read it: its instructions, and its weights in their layout."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from torch import Tensor

from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.ops.base import Attention, Model
from octavo.ops.native import _kernels
from octavo.ops.native.instructions import Instruction, Matrix
from octavo.ops.native.lowering import lower
from octavo.ops.native.packing import pack
from octavo.ops.native.program import PackedWeight, matrices_of
from octavo.ops.native.recorder import most_experts_per_token, record


@dataclass(frozen=True, slots=True)
class PackedModel:
    """`matrices` are packed weights by the id of the weight they were made from, which `instructions` name."""

    instructions: list[Instruction]
    matrices: dict[int, PackedWeight]
    attention_layers: list[Attention]
    vocab_size: int
    experts_per_token: int

    @property
    def weight_bytes(self) -> int:
        return sum(matrix.num_bytes for matrix in self.matrices.values())


def pack_model(model: Model, threads: int | None = None, fused: bool = True, consume: bool = False) -> PackedModel:
    """Record and lower `model`, and pack its weights with `threads` threads (None: one for each usable processor).

    `fused` False makes each op an instruction of its own: the same bits, slower. With `consume` each weight is emptied
    once it is packed, so that hardly more than one copy of the model is ever in memory; the model can compute nothing
    any more. Raises `ExecutorUnavailable` for a model that the native executor cannot compute.
    """
    calls = record(model)
    instructions = lower(calls, fused=fused)
    return PackedModel(
        instructions,
        _pack_matrices(matrices_of(instructions), num_threads(threads), consume),
        model.attention_layers,
        model.vocab_size,
        most_experts_per_token(calls),
    )


def num_threads(threads: int | None) -> int:
    """As asked for, or one for each processor that this process may use."""
    return threads or int(_kernels.available_threads())


def _pack_matrices(matrices: Sequence[Matrix], threads: int, consume: bool) -> dict[int, PackedWeight]:
    """The largest first, so that the threads end together."""

    def packed(matrix: Matrix) -> PackedWeight:
        result = pack(matrix.weight, matrix.group)
        if consume:
            _empty(matrix.weight)
        return result

    ordered = sorted(matrices, key=lambda matrix: -matrix.weight.shape[0] * matrix.weight.shape[1])
    with ThreadPoolExecutor(threads) as pool:
        return dict(zip((id(matrix.weight) for matrix in ordered), pool.map(packed, ordered), strict=True))


def _empty(weight: Tensor | QuantizedTensor) -> None:
    """Let go of a weight's memory, be it the allocator's or a mapped file's, whoever else holds the weight."""
    tensors = tuple(weight.parts().values()) if isinstance(weight, QuantizedTensor) else (weight,)
    for tensor in tensors:
        _let_go(tensor)


def _let_go(tensor: Tensor) -> None:
    if tensor._base is not None:  # a view holds the tensor it was made from, and so its memory
        _let_go(tensor._base)
    tensor.data = tensor.new_empty(0)
