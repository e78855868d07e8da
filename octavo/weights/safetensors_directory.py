"""A Hugging Face directory: config.json beside one model.safetensors or shards with an index."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from octavo.core.errors import CheckpointError
from octavo.weights.checkpoint import CONFIG_NAME, Checkpoint

if TYPE_CHECKING:
    from octavo.numerics.quantized_tensor import QuantizedTensor
    from octavo.text.tokenizer import Tokenizer

SINGLE_FILE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"

_ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip


class SafetensorsDirectory(Checkpoint):
    """Reads plain tensors. Files are memory-mapped: a tensor's pages are loaded when it is first used."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self.config: dict[str, Any] = read_json(source / CONFIG_NAME)
        self._file_of = _locate_tensors(source)
        self._handles: dict[Path, Any] = {}
        for file in dict.fromkeys(self._file_of.values()):
            self._handle(file)

    def names(self) -> list[str]:
        return sorted(self._file_of)

    def get(self, name: str) -> Tensor | QuantizedTensor:
        return self.stored(name)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.stored_shape(name)

    def get_matrix(self, name: str, index: int) -> Tensor:
        matrix: Tensor = self._slice(name)[index]
        return matrix

    def tensor_type(self, name: str) -> str:
        return self.stored_dtype(name)

    def tensor_bytes(self, name: str) -> int:
        return self.stored_bytes(name)

    @property
    def num_bytes(self) -> int:
        return sum(file.stat().st_size for file in set(self._file_of.values()))

    def tokenizer(self) -> Tokenizer:
        from octavo.text.tokenizer import Tokenizer

        return Tokenizer.from_directory(self.source)

    def close(self) -> None:
        self._handles.clear()

    def stored(self, name: str) -> Tensor:
        """The tensor exactly as the file has it."""
        file = self._file(name)
        try:
            tensor: Tensor = self._handle(file).get_tensor(name)
        except SafetensorError as error:
            raise CheckpointError(f"{file}: tensor {name} cannot be read: {error}") from error
        return tensor

    def stored_shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._slice(name).get_shape())

    def stored_dtype(self, name: str) -> str:
        """safetensors' own dtype name, such as `BF16`."""
        return str(self._slice(name).get_dtype())

    def stored_bytes(self, name: str) -> int:
        dtype = self.stored_dtype(name)
        if dtype not in _ITEM_BYTES:
            raise CheckpointError(f"{self._file(name)}: tensor {name} has dtype {dtype}, which is not read")
        return _ITEM_BYTES[dtype] * torch.Size(self.stored_shape(name)).numel()

    def _slice(self, name: str) -> Any:
        return self._handle(self._file(name)).get_slice(name)

    def _file(self, name: str) -> Path:
        if name not in self._file_of:
            raise CheckpointError(f"{self.source}: has no tensor {name}")
        return self._file_of[name]

    def _handle(self, file: Path) -> Any:
        if file not in self._handles:
            self._handles[file] = _open_safetensors(file)
        return self._handles[file]


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises `CheckpointError` where it is missing or is something else."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{file}: missing; a model directory needs it") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{file}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file}: must hold one JSON object")
    return value


def _locate_tensors(source: Path) -> dict[str, Path]:
    """Tensor name -> file. The index is believed only as far as the shards agree with it, both ways."""
    if (source / INDEX_NAME).exists():
        return _locate_by_index(source)
    files = sorted(source.glob("*.safetensors"))
    if (source / SINGLE_FILE_NAME).exists():
        files = [source / SINGLE_FILE_NAME]
    elif len(files) > 1:
        found = ", ".join(file.name for file in files)
        raise CheckpointError(f"{source}: several files ({found}) but no {INDEX_NAME} and no {SINGLE_FILE_NAME}")
    return dict.fromkeys(_open_safetensors(files[0]).keys(), files[0])


def _locate_by_index(source: Path) -> dict[str, Path]:
    index_file = source / INDEX_NAME
    weight_map = read_json(index_file).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index_file}: weight_map is missing or empty")
    stored: dict[str, str] = {}
    for shard in sorted(set(weight_map.values())):
        if Path(shard).name != shard:
            raise CheckpointError(f"{index_file}: shard {shard!r} is not a plain file name")
        if not (source / shard).exists():
            raise CheckpointError(f"{source / shard}: missing; {INDEX_NAME} names it")
        stored.update(dict.fromkeys(_open_safetensors(source / shard).keys(), shard))
    for name, shard in weight_map.items():
        if stored.get(name) != shard:
            where = f"it is in {stored[name]}" if name in stored else "no shard has it"
            raise CheckpointError(f"{source / shard}: lacks tensor {name} that {INDEX_NAME} promises; {where}")
    for name, shard in stored.items():
        if name not in weight_map:
            raise CheckpointError(f"{source / shard}: tensor {name} is not in {INDEX_NAME}")
    return {name: source / shard for name, shard in weight_map.items()}


def _open_safetensors(file: Path) -> Any:
    try:
        return safe_open(file, framework="pt")
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{file}: not a whole safetensors file: {error}") from error
