"""Checkpoints that store a layer's experts as one tensor, seen as if each expert had its own.

`...mlp.experts.gate_up_proj` `[experts, 2 * features, hidden]` (transformers 5) -> `...experts.3.gate_proj.weight`
`[features, hidden]`, `...experts.3.up_proj.weight`; `down_proj` likewise, and `gate_proj` and `up_proj` stacked
by themselves (GGUF). The router of such a file is `...mlp.gate` for every family.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.core.errors import CheckpointError
from octavo.models.spec import ModelSpec, ModuleNames
from octavo.weights.checkpoint import Checkpoint

if TYPE_CHECKING:
    from torch import Tensor

    from octavo.numerics.activations import InputQuantizer
    from octavo.numerics.kv_scales import KvScales
    from octavo.numerics.quantized_tensor import QuantizedTensor
    from octavo.numerics.scheme import Scheme
    from octavo.text.tokenizer import Tokenizer

_STACKED = re.compile(r"model\.layers\.(\d+)\.mlp\.experts\.(gate_up|gate|up|down)_proj(?:\.weight)?")
_ROUTER = re.compile(r"model\.layers\.(\d+)\.mlp\.gate\.weight")


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows `[first_row, first_row + shape[0])` of matrix `expert` of the stored tensor `name`; `expert` None: all of
    it. `share` is its part of the stored bytes."""

    name: str
    shape: tuple[int, ...]
    expert: int | None = None
    first_row: int = 0
    share: float = 1.0


def has_stacked_experts(checkpoint: Checkpoint) -> bool:
    return any(_STACKED.fullmatch(name) for name in checkpoint.names())


class StackedExperts(Checkpoint):
    """A view of `checkpoint` under the family's own names (`spec.names`): one matrix for each expert and role."""

    def __init__(self, checkpoint: Checkpoint, spec: ModelSpec) -> None:
        self.source = checkpoint.source
        self.config = checkpoint.config
        self._checkpoint = checkpoint
        self._parts: dict[str, _Part] = {}
        for name in checkpoint.names():
            self._parts |= _parts(name, checkpoint.shape(name), spec.names)

    def names(self) -> list[str]:
        return sorted(self._parts)

    def get(self, name: str) -> Tensor | QuantizedTensor:
        part = self._part(name)
        if part.expert is None:
            return self._checkpoint.get(part.name)
        matrix = self._checkpoint.get_matrix(part.name, part.expert)
        return matrix[part.first_row : part.first_row + part.shape[0]]

    def shape(self, name: str) -> tuple[int, ...]:
        return self._part(name).shape

    def tensor_bytes(self, name: str) -> int:
        part = self._part(name)
        return round(self._checkpoint.tensor_bytes(part.name) * part.share)

    def tensor_type(self, name: str) -> str:
        """The stored tensor's: a safetensors dtype or a ggml type."""
        return self._checkpoint.tensor_type(self._part(name).name)

    def scheme(self, name: str) -> Scheme | None:
        part = self._part(name)
        return self._checkpoint.scheme(part.name) if part.expert is None else None

    @property
    def notes(self) -> tuple[str, ...]:
        return self._checkpoint.notes

    def input_quantizer(self, module: str) -> InputQuantizer | None:
        return self._checkpoint.input_quantizer(module)

    def kv_scales(self, attention: str) -> KvScales | None:
        return self._checkpoint.kv_scales(attention)

    @property
    def num_bytes(self) -> int:
        return self._checkpoint.num_bytes

    def tokenizer(self) -> Tokenizer:
        return self._checkpoint.tokenizer()

    def close(self) -> None:
        self._checkpoint.close()

    def _part(self, name: str) -> _Part:
        if name not in self._parts:
            raise CheckpointError(f"{self.source}: has no tensor {name}")
        return self._parts[name]


def _parts(name: str, shape: tuple[int, ...], names: ModuleNames) -> dict[str, _Part]:
    """What a stored tensor is seen as."""
    if router := _ROUTER.fullmatch(name):
        return {f"{names.in_layer(int(router[1]), names.router)}.weight": _Part(name, shape)}
    stacked = _STACKED.fullmatch(name)
    if stacked is None or len(shape) != 3:
        return {name: _Part(name, shape)}
    modules = {"gate": names.expert_gate, "up": names.expert_up, "down": names.expert_down}
    roles = ("gate", "up") if stacked[2] == "gate_up" else (stacked[2],)
    num_experts, num_rows, num_columns = shape[0], shape[1] // len(roles), shape[2]
    return {
        f"{names.of_expert(int(stacked[1]), expert, modules[role])}.weight": _Part(
            name, (num_rows, num_columns), expert, half * num_rows, 1 / (num_experts * len(roles))
        )
        for expert in range(num_experts)
        for half, role in enumerate(roles)
    }
