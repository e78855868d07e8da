"""Files that lie about themselves: refused by name, in an instant, without memory for what they claim."""

from __future__ import annotations

import json
import struct
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from octavo.core.errors import CheckpointError, OctavoError
from octavo.models.gguf_export import export_gguf
from octavo.models.load import load_model
from octavo.weights.gguf_file import GgufFile
from octavo.weights.safetensors_directory import SafetensorsDirectory
from tests.checkpoints import make_tiny
from tests.weights.gguf_models import stored_model

HUGE = 2**60
STRING, ARRAY, UINT32 = 8, 9, 4


@pytest.fixture(autouse=True)
def _no_time_and_no_memory() -> Iterator[None]:
    """Whatever a file claims, refusing it takes a moment and a few megabytes."""
    tracemalloc.start()
    begun = time.process_time()
    yield
    seconds, (_, peak_bytes) = time.process_time() - begun, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seconds < 10
    assert peak_bytes < 200e6


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def pair(key: str, kind: int, raw: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + raw


def tensor(name: str = "a", shape: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), kind, offset)


def gguf(pairs: list[bytes], tensors: list[bytes], data: bytes = bytes(256), counts: Any = None) -> bytes:
    num_tensors, num_pairs = counts or (len(tensors), len(pairs))
    head = struct.pack("<4sIQQ", b"GGUF", 3, num_tensors, num_pairs) + b"".join(pairs) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + data


def nested_arrays(depth: int) -> bytes:
    return struct.pack("<IQ", ARRAY, 1) * depth + struct.pack("<IQ", UINT32, 0)


FORTY_MEGABYTES = bytes(40_000_000)
LIES = {
    "more tensors than bytes": (gguf([], [tensor()], counts=(HUGE, 0)), "truncated or damaged"),
    "more metadata than bytes": (gguf([], [], counts=(0, HUGE)), "truncated or damaged|stands twice"),
    "a long key": (gguf([struct.pack("<Q", HUGE) + b"k"], [], FORTY_MEGABYTES), "ends beyond the file"),
    "a long text": (gguf([pair("k", STRING, struct.pack("<Q", HUGE))], []), "ends beyond the file"),
    "a long array": (gguf([pair("k", ARRAY, struct.pack("<IQ", UINT32, HUGE))], []), "ends beyond the file"),
    "a long array of texts": (gguf([pair("k", ARRAY, struct.pack("<IQ", STRING, HUGE))], []), "damaged"),
    "arrays in arrays": (gguf([pair("k", ARRAY, nested_arrays(5000))], []), "arrays within arrays"),
    "an unknown value type": (gguf([pair("k", 77, b"")], []), "unknown value type 77"),
    "bytes that are no text": (gguf([pair("k", STRING, struct.pack("<Q", 2) + b"\xff\xfe")], []), "damaged"),
    "alignment of zero": (gguf([pair("general.alignment", UINT32, struct.pack("<I", 0))], []), "power of two"),
    "alignment of three": (gguf([pair("general.alignment", UINT32, struct.pack("<I", 3))], []), "power of two"),
    "alignment in words": (gguf([pair("general.alignment", STRING, text("32"))], []), "power of two"),
    "a tensor beyond the file": (gguf([], [tensor(offset=1024)]), "a ends at byte .* beyond the file"),
    "an offset near 2^64": (gguf([], [tensor(offset=2**64 - 32)]), "beyond the file"),
    "an offset between places": (gguf([], [tensor(offset=5)]), "no multiple of 32"),
    "tensors on one another": (gguf([], [tensor("a"), tensor("b", offset=96)]), "a and b overlap"),
    "more weights than bytes": (gguf([], [tensor(shape=(HUGE, HUGE))]), "beyond the file"),
    "no weights": (gguf([], [tensor(shape=(HUGE, 0))]), "holds nothing"),
    "a thousand dimensions": (gguf([], [tensor(shape=(1,) * 1000)]), "1000 dimensions"),
    "2^32 dimensions": (gguf([], [text("a") + struct.pack("<I", 2**32 - 1)]), "dimensions"),
    "an unknown tensor type": (gguf([], [tensor(kind=999)]), "unknown type number 999"),
    "half a block": (gguf([], [tensor(shape=(2, 48), kind=2)]), "not whole Q4_0 blocks"),
    "a name twice": (gguf([], [tensor(), tensor(offset=128)]), "stands twice"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_gguf_header_that_lies(lie: str, tmp_path: Path) -> None:
    content, words = LIES[lie]
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=words) as caught:
        GgufFile(path)
    assert "m.gguf" in str(caught.value)


@pytest.fixture(scope="module")
def honest_gguf(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    directory = tmp_path_factory.mktemp("honest")
    spec, model = stored_model(make_tiny("llama-tied", directory / "model"))
    return export_gguf(directory / "m.gguf", spec, model, "F16").directory.read_bytes()


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("block_count", 2**32 - 1, "there are 3 blocks"),
        ("block_count", 0, "a whole number above zero"),
        ("embedding_length", 2**31, r"token_embd\.weight is"),
        ("attention.head_count", 0, "a whole number above zero"),
        ("attention.head_count", 2**31, r"blk\.0\.attn_q\.weight is"),
        ("attention.key_length", 2**31, "attention.value_length"),
        ("attention.head_count_kv", 2**31, "num_key_value_heads"),
        ("feed_forward_length", 2**31, "gate_proj"),
    ],
)
def test_gguf_sizes_that_the_tensors_belie(
    key: str, value: int, words: str, honest_gguf: bytes, tmp_path: Path
) -> None:
    start = honest_gguf.index(text(f"llama.{key}")) + len(text(f"llama.{key}")) + 4
    path = tmp_path / "m.gguf"
    path.write_bytes(honest_gguf[:start] + struct.pack("<I", value) + honest_gguf[start + 4 :])
    with pytest.raises(OctavoError, match=words):
        load_model(path)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_truncated_gguf_model(share: float, honest_gguf: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(honest_gguf[: int(len(honest_gguf) * share)])
    with pytest.raises(CheckpointError, match=r"m\.gguf"):
        load_model(path)


def safetensors(header: Any, data: bytes = bytes(64), length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def entry(shape: list[int], first: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [first, end]}


SAFETENSORS_LIES = {
    "a header longer than the file": safetensors({}, length=HUGE),
    "a header of a gigabyte": safetensors({}, length=2**30),
    "no JSON": safetensors(b"{not json"),
    "an offset beyond the file": safetensors({"a": entry([16], 0, 1 << 40)}),
    "a shape that is not its bytes": safetensors({"a": entry([HUGE], 0, 64)}),
    "an end before the beginning": safetensors({"a": entry([16], 64, 0)}),
    "tensors on one another": safetensors({"a": entry([16], 0, 64), "b": entry([8], 16, 48)}),
    "an unknown dtype": safetensors({"a": entry([16], 0, 64, "F99")}),
    "less data than promised": safetensors({"a": entry([16], 0, 64)}, bytes(63)),
    "an empty file": b"",
}


@pytest.mark.parametrize("lie", SAFETENSORS_LIES)
def test_a_safetensors_header_that_lies(lie: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(SAFETENSORS_LIES[lie])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: not a whole safetensors file"):
        SafetensorsDirectory(tmp_path)


@pytest.mark.parametrize("share", [0.001, 0.3, 0.999])
def test_a_truncated_safetensors_file(share: float, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(64, 64), "b": torch.ones(7)}, path)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: not a whole safetensors file"):
        SafetensorsDirectory(tmp_path)
