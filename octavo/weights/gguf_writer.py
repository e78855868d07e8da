"""Writing a GGUF file (version 3): metadata, tensor table, data; `gguf_header` reads what this writes.

The size of the table is known before any tensor is: names and dimension counts suffice. So its place is left free,
tensors are written as they come, each held in memory once, and the table goes in at the end.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, BinaryIO

from torch import Tensor

from octavo.core.errors import InvalidField
from octavo.numerics.ggml import BLOCK_SIZES, stored_bytes

ALIGNMENT = 32
_VERSION = 3
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
#: ggml's numbers of the types that are written.
TYPE_NUMBERS = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8,
    "Q2_K": 10, "Q3_K": 11, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "BF16": 30, "TQ2_0": 35, "MXFP4": 39,
}  # fmt: skip
assert TYPE_NUMBERS.keys() == BLOCK_SIZES.keys()


class GgufWriter:
    """Writes into `stream`: `metadata`, then exactly the tensors announced in `num_dimensions` (name -> count).

    Metadata values: bool, int (stored as uint32), float (float32), str, and lists of one of these (ints as int32).
    """

    def __init__(self, stream: BinaryIO, metadata: Mapping[str, Any], num_dimensions: Mapping[str, int]) -> None:
        self._stream = stream
        self._announced = dict(num_dimensions)
        self._infos: dict[str, bytes] = {}
        self._metadata = dict(metadata)
        table_bytes = sum(len(_string(name)) + 4 + 8 * count + 4 + 8 for name, count in num_dimensions.items())
        self._start = _aligned(len(self._head()) + table_bytes)
        self._offset = 0
        stream.write(bytes(self._start))

    def add(self, name: str, shape: tuple[int, ...], type_name: str, data: Tensor) -> None:
        """`shape` row-major, `data` uint8 of the type's blocks in that order."""
        assert self._announced[name] == len(shape)
        assert name not in self._infos
        assert data.numel() == stored_bytes(type_name, shape)
        dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        self._infos[name] = _string(name) + dimensions + struct.pack("<IQ", TYPE_NUMBERS[type_name], self._offset)
        self._stream.write(data.contiguous().numpy().data)
        padded = _aligned(data.numel())
        self._stream.write(bytes(padded - data.numel()))
        self._offset += padded

    def finish(self, **settled: int) -> int:
        """Write the head; the file's size in bytes. `settled`: numbers in `general.` that tensors had to decide."""
        assert self._infos.keys() == self._announced.keys()
        self._metadata |= {f"general.{key}": value for key, value in settled.items()}
        self._stream.seek(0)
        self._stream.write(self._head() + b"".join(self._infos.values()))
        return self._start + self._offset

    def _head(self) -> bytes:
        start = struct.pack("<4sIQQ", b"GGUF", _VERSION, len(self._announced), len(self._metadata))
        return start + b"".join(_string(key) + _value(key, value) for key, value in self._metadata.items())


def _aligned(position: int) -> int:
    return -(-position // ALIGNMENT) * ALIGNMENT


def _string(text: str) -> bytes:
    raw = text.encode("utf-8")
    return struct.pack("<Q", len(raw)) + raw


def _value(key: str, value: Any) -> bytes:
    if not isinstance(value, list):
        kind = _kind(key, value)
        return struct.pack("<I", kind) + _bare(kind, value)
    kinds = {_kind(key, item) for item in value}
    if len(kinds) > 1:
        raise InvalidField(f"metadata.{key}", value[:3], "the items of a GGUF array are of one kind")
    kind = kinds.pop() if kinds else _STRING
    kind = _INT32 if kind == _UINT32 else kind
    return struct.pack("<IIQ", _ARRAY, kind, len(value)) + b"".join(_bare(kind, item) for item in value)


def _kind(key: str, value: Any) -> int:
    for kind, python_type in ((_BOOL, bool), (_UINT32, int), (_FLOAT32, float), (_STRING, str)):
        if isinstance(value, python_type):
            return kind
    raise InvalidField(f"metadata.{key}", value, "GGUF metadata holds bools, numbers, texts and lists of them")


def _bare(kind: int, value: Any) -> bytes:
    if kind == _STRING:
        return _string(value)
    return struct.pack({_UINT32: "<I", _INT32: "<i", _FLOAT32: "<f", _BOOL: "<?"}[kind], value)
