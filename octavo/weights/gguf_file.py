"""A GGUF file: metadata and tensors under GGUF's own names; block formats are dequantized to float32.

What the names mean to a model (and llama's row order of q and k) is the business of `octavo.models`.
"""

from __future__ import annotations

import math
import mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from octavo.core.errors import CheckpointError
from octavo.weights.checkpoint import Checkpoint
from octavo.weights.gguf_header import GgufHeader, TensorInfo, read_header

if TYPE_CHECKING:
    from octavo.text.tokenizer import Tokenizer

#: Types `get` reads; the first three keep their dtype.
READABLE_TYPES = (
    *("F32", "F16", "BF16"),
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    *("IQ4_NL", "TQ1_0", "TQ2_0", "MXFP4"),
)
_PLAIN_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
#: Weights dequantized at a time: intermediate arrays stay in the second-level cache.
_CHUNK_WEIGHTS = 1 << 16


class GgufFile(Checkpoint):
    """One .gguf file, memory-mapped. `config` is empty; `metadata` has the header's keys as plain values."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self.config: dict[str, Any] = {}
        self._map = _map_file(source)
        self._header: GgufHeader = read_header(self._map, source)
        if self.metadata.get("split.count", 1) not in (0, 1):
            raise CheckpointError(f"{source}: one part of a split GGUF; merge the parts first (gguf-split --merge)")

    @property
    def metadata(self) -> dict[str, Any]:
        return self._header.metadata

    def names(self) -> list[str]:
        return sorted(self._header.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._info(name).shape

    def tensor_type(self, name: str) -> str:
        """ggml's name of the storage type, such as `Q4_K`."""
        return self._info(name).tensor_type

    def tensor_bytes(self, name: str) -> int:
        return self._info(name).num_bytes

    @property
    def num_bytes(self) -> int:
        return len(self._map)

    def tokenizer(self) -> Tokenizer:
        from octavo.text.tokenizer import Tokenizer

        return Tokenizer.from_gguf(self.metadata)

    def get(self, name: str) -> Tensor:
        """The tensor, row-major `[outputs, inputs]`: F16 and BF16 as they are, everything else float32."""
        info = self._info(name)
        return self._read(info, info.shape, 0)

    def get_matrix(self, name: str, index: int) -> Tensor:
        info = self._info(name)
        if not 0 <= index < info.shape[0]:
            raise CheckpointError(f"{self.source}: tensor {name} holds {info.shape[0]} matrices, there is no {index}")
        return self._read(info, info.shape[1:], index)

    def _read(self, info: TensorInfo, shape: tuple[int, ...], index: int) -> Tensor:
        """Part `index` of equal parts of that shape, one after the other in the file."""
        if info.tensor_type not in READABLE_TYPES:
            readable = ", ".join(READABLE_TYPES)
            raise CheckpointError(
                f"{self.source}: tensor {info.name} has type {info.tensor_type}, which is not read; "
                f"these are: {readable}"
            )
        num_bytes = info.num_bytes * math.prod(shape) // info.num_weights
        raw = np.frombuffer(self._map, np.uint8, num_bytes, info.offset + index * num_bytes)
        if info.tensor_type in _PLAIN_DTYPES:
            return torch.from_numpy(raw.copy()).view(_PLAIN_DTYPES[info.tensor_type]).reshape(shape)
        return torch.from_numpy(_dequantize(raw, info.tensor_type)).reshape(shape)

    def _info(self, name: str) -> TensorInfo:
        if name not in self._header.tensors:
            raise CheckpointError(f"{self.source}: has no tensor {name}")
        return self._header.tensors[name]


def _map_file(source: Path) -> mmap.mmap:
    try:
        with source.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{source}: cannot be read: {error}") from error


def _dequantize(raw: np.ndarray, type_name: str) -> np.ndarray:
    """Blocks -> float32 values, by the `gguf` package's own formulas."""
    import gguf

    tensor_type = gguf.GGMLQuantizationType[type_name]
    block_weights, block_bytes = gguf.GGML_QUANT_SIZES[tensor_type]
    chunk_blocks = _CHUNK_WEIGHTS // block_weights
    num_blocks = len(raw) // block_bytes
    values = np.empty(num_blocks * block_weights, np.float32)
    for first in range(0, num_blocks, chunk_blocks):
        blocks = raw[first * block_bytes : (first + chunk_blocks) * block_bytes].reshape(1, -1)
        chunk = gguf.quants.dequantize(blocks, tensor_type).reshape(-1)
        values[first * block_weights : first * block_weights + len(chunk)] = chunk
    return values
