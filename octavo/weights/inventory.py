"""What a checkpoint holds: tensors counted by how they are stored."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass
from typing import Any

from octavo.weights.checkpoint import Checkpoint


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
        storage, scheme = storage_of(checkpoint, name), checkpoint.scheme(name)
        count = counts.setdefault(storage, StorageCount(storage, None if scheme is None else scheme.bits))
        count.num_tensors += 1
        count.num_weights += math.prod(checkpoint.shape(name))
        count.num_bytes += checkpoint.tensor_bytes(name)
    return sorted(counts.values(), key=lambda count: -count.num_bytes)


@dataclass(frozen=True, slots=True)
class ModuleGroup:
    """Tensors of one role that are stored alike: `pattern` has `*` for every number in a name."""

    pattern: str
    storage: str
    num_tensors: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def group_modules(checkpoint: Checkpoint) -> list[ModuleGroup]:
    """What each role of quantized matrix is stored as, in the order of names. Reads headers only."""
    counts: dict[tuple[str, str], int] = {}
    for name in checkpoint.names():
        if checkpoint.scheme(name) is not None:
            key = (re.sub(r"\d+", "*", name.removesuffix(".weight")), storage_of(checkpoint, name))
            counts[key] = counts.get(key, 0) + 1
    return [ModuleGroup(pattern, storage, count) for (pattern, storage), count in counts.items()]


def storage_of(checkpoint: Checkpoint, name: str) -> str:
    """Scheme, rounding of inputs, and the format's name for it; for a dense tensor the last alone."""
    scheme = checkpoint.scheme(name)
    if scheme is None:
        return checkpoint.tensor_type(name)
    quantizer = checkpoint.input_quantizer(name.removesuffix(".weight"))
    inputs = "" if quantizer is None else f" x {quantizer.scheme}"
    return f"{scheme}{inputs}, {checkpoint.tensor_type(name)}"
