"""The header of a GGUF file (version 2 and 3): metadata and where each tensor lies.

The `gguf` package's reader makes an object of every element of every array: four seconds for a vocabulary of
49 thousand. This reads the same bytes in a twentieth of that; `tests/weights/test_gguf_file.py` compares the two.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from octavo.core.errors import CheckpointError

_STRING, _ARRAY, _BOOL = 8, 9, 7
#: GGUF value type -> little-endian format.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_DEFAULT_ALIGNMENT = 32
#: ggml's limits; a header that asks for more is damaged or hostile.
_MOST_DIMENSIONS = 4
_MOST_NESTED_ARRAYS = 4


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """`shape` is row-major (GGUF stores it reversed), `offset` counts from the start of the file."""

    name: str
    shape: tuple[int, ...]
    tensor_type: str
    offset: int
    num_bytes: int

    @property
    def num_weights(self) -> int:
        return math.prod(self.shape)


@dataclass(slots=True)
class GgufHeader:
    metadata: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, TensorInfo] = field(default_factory=dict)


def read_header(data: Any, source: Path) -> GgufHeader:
    """Parse the header from a bytes-like `data`. Raises `CheckpointError` naming `source`."""
    if bytes(data[:4]) != b"GGUF":
        raise CheckpointError(f"{source}: not a GGUF file (it does not start with the letters GGUF)")
    try:
        return _read(_Cursor(data, 4), source)
    except (struct.error, UnicodeDecodeError, IndexError, OverflowError) as error:
        raise CheckpointError(f"{source}: truncated or damaged GGUF header: {error}") from error


class _Cursor:
    """A position in the bytes; every read moves it on."""

    def __init__(self, data: Any, position: int) -> None:
        self.data = data
        self.position = position

    def number(self, code: str) -> Any:
        value = struct.unpack_from("<" + code, self.data, self.position)[0]
        self.position += struct.calcsize("<" + code)
        return value

    def string(self) -> str:
        length = self.number("Q")
        if length > len(self.data) - self.position:
            raise struct.error(f"a text of {length} bytes ends beyond the file")
        raw = self.data[self.position : self.position + length]
        self.position += length
        return bytes(raw).decode("utf-8")

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self.array(depth + 1)
        if kind not in _SCALARS:
            raise struct.error(f"unknown value type {kind}")
        return self.number(_SCALARS[kind])

    def array(self, depth: int) -> list[Any]:
        if depth > _MOST_NESTED_ARRAYS:
            raise struct.error(f"arrays within arrays, more than {_MOST_NESTED_ARRAYS} deep")
        kind, length = self.number("I"), self.number("Q")
        if kind not in _SCALARS:
            return [self.value(kind, depth) for _ in range(length)]
        dtype = np.dtype("?" if kind == _BOOL else "<" + _SCALARS[kind])
        if self.position + length * dtype.itemsize > len(self.data):
            raise struct.error(f"an array of {length} numbers ends beyond the file")
        numbers = np.frombuffer(self.data, dtype, length, self.position)
        self.position += length * dtype.itemsize
        return list(numbers.tolist())


def _read(cursor: _Cursor, source: Path) -> GgufHeader:
    version = cursor.number("I")
    if version not in (2, 3):
        raise CheckpointError(f"{source}: GGUF version {version}; versions 2 and 3 (little-endian) are read")
    num_tensors, num_values = cursor.number("Q"), cursor.number("Q")
    header = GgufHeader()
    for _ in range(num_values):
        key = cursor.string()
        if key in header.metadata:
            raise CheckpointError(f"{source}: metadata key {key} stands twice")
        header.metadata[key] = cursor.value(cursor.number("I"))
    found = [_read_tensor_info(cursor) for _ in range(num_tensors)]
    alignment = _alignment(header.metadata, source)
    start = -(-cursor.position // alignment) * alignment
    for name, shape, type_number, relative_offset in found:
        if name in header.tensors:
            raise CheckpointError(f"{source}: tensor {name} stands twice")
        if relative_offset % alignment:
            raise CheckpointError(f"{source}: tensor {name} begins at {relative_offset}, no multiple of {alignment}")
        type_name, num_bytes = _storage(source, name, shape, type_number)
        header.tensors[name] = TensorInfo(name, shape, type_name, start + relative_offset, num_bytes)
    _check_places(header.tensors.values(), len(cursor.data), source)
    return header


def _alignment(metadata: dict[str, Any], source: Path) -> int:
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        raise CheckpointError(f"{source}: metadata general.alignment is {alignment!r}; a power of two is needed")
    return alignment


def _check_places(tensors: Iterable[TensorInfo], file_bytes: int, source: Path) -> None:
    """Every tensor lies within the file and on no other."""
    end, last = 0, ""
    for info in sorted(tensors, key=lambda each: each.offset):
        if info.offset < end:
            raise CheckpointError(f"{source}: tensors {last} and {info.name} overlap")
        end, last = info.offset + info.num_bytes, info.name
        if end > file_bytes:
            raise CheckpointError(
                f"{source}: truncated: tensor {info.name} ends at byte {end:,}, beyond the file of {file_bytes:,}"
            )


def _read_tensor_info(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name, num_dimensions = cursor.string(), cursor.number("I")
    if num_dimensions > _MOST_DIMENSIONS:
        raise struct.error(f"tensor {name} has {num_dimensions} dimensions; at most {_MOST_DIMENSIONS} are known")
    shape = tuple(reversed([cursor.number("Q") for _ in range(num_dimensions)]))
    if not shape or 0 in shape:
        raise struct.error(f"tensor {name} has the shape {shape}, which holds nothing")
    return name, shape, cursor.number("I"), cursor.number("Q")


def _storage(source: Path, name: str, shape: tuple[int, ...], type_number: int) -> tuple[str, int]:
    """ggml type name and stored bytes, from the `gguf` package's table."""
    import gguf

    try:
        tensor_type = gguf.GGMLQuantizationType(type_number)
    except ValueError:
        raise CheckpointError(f"{source}: tensor {name} has the unknown type number {type_number}") from None
    block_weights, block_bytes = gguf.GGML_QUANT_SIZES[tensor_type]
    if shape and shape[-1] % block_weights:
        raise CheckpointError(
            f"{source}: tensor {name} has rows of {shape[-1]}, not whole {tensor_type.name} blocks of {block_weights}"
        )
    return tensor_type.name, math.prod(shape) // block_weights * block_bytes
