"""What a checkpoint holds: tensors counted by how they are stored, and whether their numbers are sane."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from octavo.core.errors import CheckpointError
from octavo.numerics.packed_tensor import PackedTensor
from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.weights.checkpoint import Checkpoint
from octavo.weights.compressed_tensors_directory import CompressedTensorsDirectory


@dataclass(slots=True)
class StorageCount:
    """Tensors that are stored alike: `storage` is a scheme and layout, a safetensors dtype or a ggml type; `bits` per
    code, None for dense floats and ggml blocks."""

    storage: str
    bits: int | None
    num_tensors: int = 0
    num_weights: int = 0
    num_bytes: int = 0

    @property
    def bits_per_weight(self) -> float:
        return self.num_bytes * 8 / max(1, self.num_weights)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "bits_per_weight": round(self.bits_per_weight, 4)}


def count_storage(checkpoint: Checkpoint) -> list[StorageCount]:
    """Largest share of bytes first. Reads headers only."""
    counts: dict[str, StorageCount] = {}
    for name in checkpoint.names():
        storage, bits = _storage(checkpoint, name)
        count = counts.setdefault(storage, StorageCount(storage, bits))
        count.num_tensors += 1
        count.num_weights += math.prod(checkpoint.shape(name))
        count.num_bytes += checkpoint.tensor_bytes(name)
    return sorted(counts.values(), key=lambda count: -count.num_bytes)


def find_problems(checkpoint: Checkpoint, progress: Callable[[int, int], None] | None = None) -> list[str]:
    """One line for each tensor with zero or non-finite scales, or NaN or infinity among its values. Reads everything;
    a tensor that cannot be read is a line too. Empty: sane."""
    names = checkpoint.names()
    problems: list[str] = []
    for position, name in enumerate(names, 1):
        try:
            problems += [f"{name}: {problem}" for problem in _problems(checkpoint.get(name))]
        except CheckpointError as error:
            problems.append(str(error))
        if progress is not None:
            progress(position, len(names))
    return problems


def _storage(checkpoint: Checkpoint, name: str) -> tuple[str, int | None]:
    if isinstance(checkpoint, CompressedTensorsDirectory):
        module_format = checkpoint.module_format(name)
        if module_format is not None:
            return f"{module_format.scheme}, {module_format.layout}", module_format.scheme.bits
    return checkpoint.tensor_type(name), None


def _problems(tensor: Tensor | QuantizedTensor) -> Iterator[str]:
    if not isinstance(tensor, PackedTensor):
        values = tensor.dequantize() if isinstance(tensor, QuantizedTensor) else tensor
        if values.is_floating_point():
            yield from _not_finite(values, "values")
        return
    yield from _not_finite(tensor.scale, "scales")
    zeros = int((tensor.scale == 0).sum())
    if zeros:
        yield f"{zeros} of {tensor.scale.numel()} scales are zero"
    zero_point, scheme = tensor.zero_point, tensor.scheme
    if zero_point is not None and not scheme.lowest <= int(zero_point.min()) <= int(zero_point.max()) <= scheme.highest:
        yield f"zero points outside {scheme.lowest}..{scheme.highest}"


def _not_finite(tensor: Tensor, what: str) -> Iterator[str]:
    wrong = int((~torch.isfinite(tensor)).sum())
    if wrong:
        yield f"{wrong} of {tensor.numel()} {what} are NaN or infinite"
