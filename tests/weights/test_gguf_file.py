"""GGUF files: compared with the `gguf` package's own reader, and damaged ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from octavo.core.errors import CheckpointError
from octavo.weights.checkpoint import num_weights, open_checkpoint
from octavo.weights.gguf_file import READABLE_TYPES, GgufFile

SHAPE = (6, 512)
#: Types that the package cannot write: random bytes with small scales, which lie in these bytes of a block.
_BLOCK_SCALES = {"Q2_K": (80, 84), "Q3_K": (108, 110), "Q4_K": (0, 4), "Q5_K": (0, 4), "Q6_K": (208, 210),
                 "IQ4_NL": (0, 2), "IQ4_XS": (0, 2)}  # fmt: skip


def random_bytes(kind: Any, generator: np.random.Generator) -> np.ndarray:
    block_weights, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = generator.integers(0, 256, (SHAPE[0], SHAPE[1] // block_weights, block_bytes), dtype=np.uint8)
    first, last = _BLOCK_SCALES[kind.name]
    scales = generator.normal(0, 0.01, (*blocks.shape[:2], (last - first) // 2)).astype(np.float16)
    blocks[..., first:last] = scales.view(np.uint8)
    return blocks.reshape(SHAPE[0], -1)


def write_gguf(path: Path, types: tuple[str, ...] = READABLE_TYPES) -> Path:
    generator = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_string("general.name", "Größe 8")
    writer.add_bool("tokenizer.ggml.add_bos_token", False)
    writer.add_float32("llama.rope.freq_base", 100000.0)
    writer.add_array("tokenizer.ggml.tokens", ["a", "ü", ""])
    writer.add_array("tokenizer.ggml.scores", [0.5, -1.0, 2.0])
    writer.add_array("llama.flags", [True, False, True])
    writer.add_int32("llama.negative", -3)
    for name in types:
        kind = gguf.GGMLQuantizationType[name]
        if name in _BLOCK_SCALES:
            writer.add_tensor(f"{name}.weight", random_bytes(kind, generator), raw_dtype=kind)
        else:
            values = generator.normal(size=SHAPE).astype(np.float32)
            writer.add_tensor(f"{name}.weight", gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_every_type_as_the_package_reads_it(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_gguf(tmp_path / "m.gguf"))
    assert isinstance(checkpoint, GgufFile)
    expected = {str(tensor.name): tensor for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    assert checkpoint.names() == sorted(expected)
    for name, tensor in expected.items():
        values = torch.tensor(gguf.quants.dequantize(tensor.data, tensor.tensor_type))
        ours = checkpoint.get(name)
        assert checkpoint.shape(name) == tuple(ours.shape) == SHAPE
        assert checkpoint.tensor_type(name) == tensor.tensor_type.name
        assert checkpoint.tensor_bytes(name) == tensor.n_bytes
        assert values.isfinite().all()
        assert torch.equal(ours.float(), values)
    assert checkpoint.get("BF16.weight").dtype == torch.bfloat16
    assert checkpoint.num_bytes == (tmp_path / "m.gguf").stat().st_size
    assert num_weights(checkpoint) == len(READABLE_TYPES) * SHAPE[0] * SHAPE[1]


def test_metadata_as_the_package_reads_it(tmp_path: Path) -> None:
    metadata = GgufFile(write_gguf(tmp_path / "m.gguf")).metadata
    fields = gguf.GGUFReader(tmp_path / "m.gguf").fields
    expected = {key: field.contents() for key, field in fields.items() if not key.startswith("GGUF.")}
    assert metadata == expected
    assert {type(value) for value in metadata.values()} == {str, bool, float, list, int}


def test_many_blocks_and_a_vector(tmp_path: Path) -> None:
    """More weights than one dequantized piece, and a one-dimensional tensor."""
    values = np.random.default_rng(1).normal(size=(700, 320)).astype(np.float32)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    kind = gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor("big", gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.add_tensor("norm", values[0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    checkpoint = GgufFile(tmp_path / "m.gguf")
    assert np.abs(checkpoint.get("big").numpy() - values).max() < 0.02
    assert torch.equal(checkpoint.get("norm"), torch.from_numpy(values[0]))


@pytest.mark.parametrize("share", [0.0005, 0.02, 0.3, 0.999])
def test_truncated_anywhere(share: float, tmp_path: Path) -> None:
    content = write_gguf(tmp_path / "whole.gguf").read_bytes()
    path = tmp_path / "m.gguf"
    path.write_bytes(content[: max(1, int(len(content) * share))])
    with pytest.raises(CheckpointError, match=r"m\.gguf"):
        GgufFile(path)


def test_empty_and_foreign_files(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    for content in (b"", b"PK\x03\x04 something else", b"GGUF\x01\x00\x00\x00" + bytes(40)):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"m\.gguf"):
            open_checkpoint(path)


def test_unread_type_is_named(tmp_path: Path) -> None:
    checkpoint = GgufFile(write_gguf(tmp_path / "m.gguf", ("F32", "IQ4_XS")))
    checkpoint.get("F32.weight")
    with pytest.raises(CheckpointError, match=r"IQ4_XS\.weight has type IQ4_XS.*Q4_K"):
        checkpoint.get("IQ4_XS.weight")
    with pytest.raises(CheckpointError, match="has no tensor nothing"):
        checkpoint.get("nothing")
