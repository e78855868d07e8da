"""Opening a model: directories, shards, pickles, damage."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from octavo.core.errors import CheckpointError
from octavo.weights.checkpoint import num_weights, open_checkpoint, true_bits_per_weight
from tests.tokenizers import make_byte_tokenizer

TENSORS = {
    "a.weight": torch.arange(12, dtype=torch.bfloat16).reshape(3, 4),
    "b.bias": torch.tensor([1.0, -2.0]),
    "c.weight": torch.zeros(2, 8, dtype=torch.float16),
}


def make_directory(folder: Path, shards: dict[str, list[str]] | None = None, **config: Any) -> Path:
    """Without `shards`: one model.safetensors. With: file -> tensor names, and an index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    if shards is None:
        save_file(TENSORS, folder / "model.safetensors")
        return folder
    for file, names in shards.items():
        save_file({name: TENSORS[name] for name in names}, folder / file)
    write_index(folder, {name: file for file, names in shards.items() for name in names})
    return folder


def write_index(folder: Path, weight_map: dict[str, str]) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


SHARDS = {"model-1.safetensors": ["a.weight"], "model-2.safetensors": ["b.bias", "c.weight"]}


@pytest.mark.parametrize("shards", [None, SHARDS])
def test_directory(shards: dict[str, list[str]] | None, tmp_path: Path) -> None:
    folder = make_directory(tmp_path / "m", shards, tie_word_embeddings=False)
    checkpoint = open_checkpoint(folder)
    assert checkpoint.source == folder
    assert checkpoint.config["model_type"] == "llama"
    assert checkpoint.names() == sorted(TENSORS)
    for name, tensor in TENSORS.items():
        stored = checkpoint.get(name)
        assert isinstance(stored, torch.Tensor)
        assert stored.dtype == tensor.dtype
        assert torch.equal(stored, tensor)
        assert checkpoint.shape(name) == tuple(tensor.shape)
        assert checkpoint.tensor_bytes(name) == tensor.nbytes
    assert checkpoint.num_bytes == sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    assert num_weights(checkpoint) == 12 + 2 + 16
    assert true_bits_per_weight(checkpoint) == checkpoint.num_bytes * 8 / 30
    with pytest.raises(CheckpointError, match=r"no tensor lm_head\.weight"):
        checkpoint.get("lm_head.weight")


def test_tensors_outlive_the_checkpoint(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(make_directory(tmp_path / "m"))
    tensor = checkpoint.get("a.weight")
    checkpoint.close()
    assert torch.equal(tensor, TENSORS["a.weight"])  # type: ignore[arg-type]
    assert torch.equal(checkpoint.get("b.bias"), TENSORS["b.bias"])  # type: ignore[arg-type]


def test_tokenizer(tmp_path: Path) -> None:
    folder = make_byte_tokenizer(make_directory(tmp_path / "m"))
    tokenizer = open_checkpoint(folder).tokenizer()
    assert tokenizer.decode(tokenizer.encode("hello world")) == "hello world"


def test_missing_shard(tmp_path: Path) -> None:
    folder = make_directory(tmp_path / "m", SHARDS)
    (folder / "model-2.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-2\.safetensors: missing"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"d.weight": "model-2.safetensors"}, r"lacks tensor d\.weight"),
        (
            {"a.weight": "model-2.safetensors", "b.bias": "model-1.safetensors"},
            r"lacks tensor a\.weight .* it is in model-1\.safetensors",
        ),
        ({"b.bias": None}, r"tensor b\.bias is not in"),
        ({"a.weight": "../model-1.safetensors"}, "not a plain file name"),
    ],
)
def test_index_that_disagrees_with_the_shards(weight_map: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = make_directory(tmp_path / "m", SHARDS)
    right = {name: file for file, names in SHARDS.items() for name in names}
    write_index(folder, {name: file for name, file in {**right, **weight_map}.items() if file})
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(folder)


@pytest.mark.parametrize("keep", [0, 5, 60, -1])
def test_truncated_safetensors(keep: int, tmp_path: Path) -> None:
    file = make_directory(tmp_path / "m") / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: not a whole"):
        open_checkpoint(file.parent)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "m.pth", "m.ckpt", "m.pkl"])
def test_pickles_are_refused_unread(name: str, tmp_path: Path) -> None:
    class Boom:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "pickle was read",)

    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / name).write_bytes(pickle.dumps(Boom()))
    for path in (folder, folder / name):
        with pytest.raises(CheckpointError, match=rf"{name}.* pickles.*safetensors"):
            open_checkpoint(path)
    assert not (tmp_path / "pickle was read").exists()


def test_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file"):
        open_checkpoint(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"holds no \*\.safetensors"):
        open_checkpoint(tmp_path)
    folder = make_directory(tmp_path / "m")
    with pytest.raises(CheckpointError, match="name the directory"):
        open_checkpoint(folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="not a model"):
        open_checkpoint(folder / "config.json")
    (folder / "config.json").write_text("[1]")
    with pytest.raises(CheckpointError, match=r"config\.json: must hold one JSON object"):
        open_checkpoint(folder)
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config\.json: missing"):
        open_checkpoint(folder)


def test_several_ggufs_must_be_named(tmp_path: Path) -> None:
    for name in ("q4.gguf", "q8.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match=r"q4\.gguf, q8\.gguf"):
        open_checkpoint(tmp_path)


def test_a_quantization_without_a_quantized_module_is_refused(tmp_path: Path) -> None:
    folder = make_directory(tmp_path / "m", quantization_config={"quant_method": "gptq", "bits": 4})
    with pytest.raises(CheckpointError, match="no module has a tensor qweight; remove quantization_config"):
        open_checkpoint(folder)


@pytest.mark.parametrize("method", ["quark", "bitsandbytes"])
def test_other_quantization_methods_are_named(method: str, tmp_path: Path) -> None:
    folder = make_directory(tmp_path / "m", quantization_config={"quant_method": method, "bits": 4})
    with pytest.raises(
        CheckpointError, match=f"quant_method is '{method}', which is not read; these are: compressed-tensors"
    ):
        open_checkpoint(folder)
