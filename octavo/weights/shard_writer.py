"""Tensors -> model.safetensors, or shards with an index where they are larger than one file may be."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from octavo.core.storage import for_everyone
from octavo.weights.safetensors_directory import INDEX_NAME, SINGLE_FILE_NAME

DEFAULT_SHARD_BYTES = 4 * 10**9


class ShardWriter:
    """Collects tensors and writes a shard as soon as the next tensor would not fit: at most one shard is in memory.

    The bytes depend on the tensors and their order alone.
    """

    def __init__(self, directory: Path, shard_bytes: int = DEFAULT_SHARD_BYTES) -> None:
        self._directory = directory
        self._shard_bytes = shard_bytes
        self._pending: dict[str, Tensor] = {}
        self._pending_bytes = 0
        self._shards: list[list[str]] = []
        self._total_bytes = 0

    def add(self, tensors: dict[str, Tensor]) -> None:
        """Tensors given together stay in one file."""
        size = sum(tensor.nbytes for tensor in tensors.values())
        if self._pending and self._pending_bytes + size > self._shard_bytes:
            self._flush()
        self._pending.update(tensors)
        self._pending_bytes += size
        self._total_bytes += size

    def finish(self) -> int:
        """Write what is left, name the files; bytes of all weight files, the index not among them."""
        self._flush()
        count = len(self._shards)
        if count == 1:
            names = [SINGLE_FILE_NAME]
        else:
            names = [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]
        for number, name in enumerate(names):
            self._unnamed(number).rename(self._directory / name)
        if count > 1:
            weight_map = {key: name for keys, name in zip(self._shards, names, strict=True) for key in keys}
            index = {"metadata": {"total_size": self._total_bytes}, "weight_map": dict(sorted(weight_map.items()))}
            (self._directory / INDEX_NAME).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
        return sum((self._directory / name).stat().st_size for name in names)

    def _flush(self) -> None:
        # One entry only: safetensors writes several in an order that changes from run to run.
        shard = self._unnamed(len(self._shards))
        with for_everyone(shard):
            save_file(_unshared(self._pending), shard, metadata={"format": "pt"})
        self._shards.append(list(self._pending))
        self._pending, self._pending_bytes = {}, 0

    def _unnamed(self, number: int) -> Path:
        return self._directory / f"shard-{number}.tmp"


def _unshared(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Each with memory of its own, which safetensors asks for: fused members share one global scale, for example."""
    seen: set[int] = set()
    own = {}
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        own[name] = tensor.clone() if place in seen else tensor
        seen.add(place)
    return own
