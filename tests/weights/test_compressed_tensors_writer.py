"""Writing: whole or not at all, the same bytes every time, nothing of anyone else's destroyed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from octavo.core.errors import CheckpointError, InvalidField
from octavo.numerics.packed_tensor import PackedTensor
from octavo.numerics.scheme import IntegerScheme
from octavo.text.tokenizer import Tokenizer
from octavo.weights.checkpoint import num_weights, open_checkpoint, true_bits_per_weight
from octavo.weights.companion_files import read_companion_files
from octavo.weights.compressed_tensors_writer import write_compressed_tensors
from octavo.weights.stored_model import StoredModel
from tests.tokenizers import make_byte_tokenizer
from tests.weights.quantized import random_packed

TENSORS: dict[str, Any] = {
    "model.embed_tokens.weight": random_packed(50, 64, IntegerScheme(8)),
    "model.layers.0.q_proj.weight": random_packed(40, 64, IntegerScheme(4, 32)),
    "model.layers.0.k_proj.weight": random_packed(20, 64, IntegerScheme(4, 32)),
    "model.layers.0.down_proj.weight": random_packed(64, 96, IntegerScheme(3, symmetric=False)),
    "model.layers.0.gate.weight": torch.randn(8, 64),
    "model.norm.weight": torch.ones(64, dtype=torch.float16),
}
CONFIG = {"model_type": "llama", "tie_word_embeddings": True, "eos_token_id": 2, "bos_token_id": 1}
MODEL = StoredModel(TENSORS, CONFIG)


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def assert_reads_back(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    assert checkpoint.names() == sorted(TENSORS)
    for name, tensor in TENSORS.items():
        stored = checkpoint.get(name)
        if isinstance(tensor, PackedTensor):
            assert isinstance(stored, PackedTensor)
            assert stored.scheme == tensor.scheme
            assert torch.equal(stored.dequantize(), tensor.dequantize())
        else:
            assert torch.equal(stored, tensor)  # type: ignore[arg-type]


def test_reads_back_and_counts_the_whole_file(tmp_path: Path) -> None:
    written = write_compressed_tensors(tmp_path / "m", MODEL)
    assert_reads_back(tmp_path / "m")
    checkpoint = open_checkpoint(tmp_path / "m")
    assert written.total_bytes == checkpoint.num_bytes == (tmp_path / "m" / "model.safetensors").stat().st_size
    assert written.num_weights == num_weights(checkpoint) == sum(torch.Size(t.shape).numel() for t in TENSORS.values())
    assert written.true_bits_per_weight == true_bits_per_weight(checkpoint)
    assert written.tensor_bytes == {name: checkpoint.tensor_bytes(name) for name in TENSORS}


def test_config(tmp_path: Path) -> None:
    write_compressed_tensors(tmp_path / "m", MODEL)
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    section = config.pop("quantization_config")
    assert config == CONFIG
    groups = section["config_groups"].values()
    assert section["format"] == "mixed-precision"
    assert [group["targets"] for group in groups] == [
        ["Embedding", "lm_head"],
        [r"re:model\.layers\.(0)\.(k_proj|q_proj)$"],
        ["model.layers.0.down_proj"],
    ]
    assert [group["weights"]["num_bits"] for group in groups] == [8, 4, 3]
    assert section["ignore"] == ["model.layers.0.gate"]


def test_shards(tmp_path: Path) -> None:
    written = write_compressed_tensors(tmp_path / "m", MODEL, shard_bytes=3000)
    files = sorted(file.name for file in (tmp_path / "m").glob("*.safetensors"))
    assert len(files) >= 3
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    assert_reads_back(tmp_path / "m")
    assert written.total_bytes == open_checkpoint(tmp_path / "m").num_bytes


def test_equal_input_gives_equal_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_compressed_tensors(
            tmp_path / name, StoredModel(dict(reversed(TENSORS.items())) if name == "b" else TENSORS, CONFIG)
        )
    assert snapshot(tmp_path / "a") == snapshot(tmp_path / "b")


def test_companions_of_the_source_survive(tmp_path: Path) -> None:
    """Bug Q5: generation settings, chat template and tokenizer are the source's, byte for byte."""
    source = make_byte_tokenizer(tmp_path / "source")
    (source / "generation_config.json").write_text('{"eos_token_id": [2, 7], "temperature": 0.2}')
    (source / "secret.txt").write_text("not a companion")
    files = read_companion_files(source)
    write_compressed_tensors(
        tmp_path / "m", StoredModel(TENSORS, CONFIG, Tokenizer.from_directory(source), extra_files=files)
    )
    written = snapshot(tmp_path / "m")
    assert all(written[name] == content for name, content in files.items())
    assert {"generation_config.json", "tokenizer.json"} <= set(files)
    assert "secret.txt" not in written
    before, after = Tokenizer.from_directory(source), open_checkpoint(tmp_path / "m").tokenizer()
    assert before.eos_ids == after.eos_ids
    messages = [{"role": "user", "content": "hi"}]
    assert before.chat_template is not None
    assert after.chat_template is not None
    assert before.chat_template.render(messages) == after.chat_template.render(messages)


def test_without_companions_stop_ids_come_from_the_tokenizer(tmp_path: Path) -> None:
    """A GGUF source has no generation_config.json."""
    tokenizer = Tokenizer.from_directory(make_byte_tokenizer(tmp_path / "source"))
    write_compressed_tensors(tmp_path / "m", StoredModel(TENSORS, CONFIG, tokenizer))
    settings = json.loads((tmp_path / "m" / "generation_config.json").read_text())
    assert settings["eos_token_id"] == list(tokenizer.eos_ids)
    assert settings["bos_token_id"] == 1
    assert open_checkpoint(tmp_path / "m").tokenizer().eos_ids == tokenizer.eos_ids


def test_a_failed_write_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    write_compressed_tensors(tmp_path / "m", MODEL)
    before = snapshot(tmp_path / "m")
    broken = {**TENSORS, "model.norm.weight": torch.tensor([1.0, float("nan")])}
    with pytest.raises(CheckpointError, match=r"tensor model\.norm\.weight holds NaN"):
        write_compressed_tensors(tmp_path / "m", StoredModel(broken, CONFIG))
    assert snapshot(tmp_path / "m") == before
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_killed_write_is_cleaned_up(tmp_path: Path) -> None:
    """Between the two renames only hidden siblings exist; the next writer puts the old one back first."""
    write_compressed_tensors(tmp_path / "m", MODEL)
    before = snapshot(tmp_path / "m")
    (tmp_path / "m").rename(tmp_path / ".m.replaced")
    (tmp_path / ".m.partial").mkdir()
    (tmp_path / ".m.partial" / "shard-0.tmp").write_bytes(b"half")
    write_compressed_tensors(tmp_path / "m", MODEL)
    assert snapshot(tmp_path / "m") == before
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_only_our_own_directories_are_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "thesis.tex").write_text("years of work")
    with pytest.raises(InvalidField, match=r"output: .*thesis.*Octavo did not write"):
        write_compressed_tensors(folder, MODEL)
    assert (folder / "thesis.tex").exists()
    (tmp_path / "file").touch()
    with pytest.raises(InvalidField, match="is a file"):
        write_compressed_tensors(tmp_path / "file", MODEL)
    write_compressed_tensors(folder, MODEL, overwrite=True)
    write_compressed_tensors(folder, MODEL)
    assert_reads_back(folder)


@pytest.mark.parametrize(
    ("config", "extra_tensor", "message"),
    [
        ({"tie_word_embeddings": True}, True, "a tied model has no lm_head"),
        ({"tie_word_embeddings": False}, False, "an untied model needs lm_head"),
    ],
)
def test_tie_flag_and_tensors_must_agree(config: Any, extra_tensor: bool, message: str, tmp_path: Path) -> None:
    head = {"lm_head.weight": torch.ones(50, 64)} if extra_tensor else {}
    with pytest.raises(InvalidField, match=message):
        write_compressed_tensors(tmp_path / "m", StoredModel({**TENSORS, **head}, config))
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("name", ["../x", "config.json", "model.safetensors"])
def test_extra_files_cannot_replace_ours(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidField, match="extra_files"):
        write_compressed_tensors(tmp_path / "m", StoredModel(TENSORS, CONFIG, extra_files={name: b""}))
