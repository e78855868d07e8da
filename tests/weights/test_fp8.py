"""Hugging Face's fine-grained FP8: transformers computes what our numbers say, ragged sizes included."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from octavo.core.errors import CheckpointError, InvalidField
from octavo.numerics.activations import InputQuantizer
from octavo.numerics.float_grid import encode_float
from octavo.numerics.float_scheme import FloatFormat, FloatScheme, Granularity
from octavo.numerics.float_tensor import FloatTensor
from octavo.quantize.schemes import NAMED
from octavo.weights.checkpoint import open_checkpoint
from octavo.weights.fp8_blocks import common_block
from octavo.weights.fp8_writer import write_fp8
from octavo.weights.model_directory import WrittenCheckpoint
from octavo.weights.second_reader import verify_directory
from octavo.weights.stored_model import StoredModel
from tests.checkpoints import make_tiny_model

BLOCKS = FloatScheme(FloatFormat.E4M3, Granularity.BLOCK)
WHOLE = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 4}


def write_tiny(folder: Path, scheme: FloatScheme = BLOCKS, **sizes: Any) -> tuple[WrittenCheckpoint, StoredModel, Any]:
    """The written directory, what was written, and the transformers model with the dequantized weights."""
    dense = make_tiny_model("llama", num_hidden_layers=2, **sizes)
    tensors: dict[str, Any] = {}
    inputs = {}
    static = NAMED["fp8-static"].inputs
    with torch.no_grad():
        for name, weight in dense.state_dict().items():
            tensors[name] = weight.clone()
            if name.endswith("_proj.weight"):
                tensors[name] = encode_float(weight, scheme)
                weight.copy_(tensors[name].dequantize())
                if scheme.granularity is Granularity.TENSOR and static is not None:
                    inputs[name.removesuffix(".weight")] = InputQuantizer(static, torch.tensor([0.02]))
    model = StoredModel(tensors, dense.config.to_dict(), inputs=inputs)
    return write_fp8(folder / "m", model), model, dense


@pytest.mark.parametrize(
    ("sizes", "block", "note"),
    [(WHOLE, 128, None), ({}, 32, "blocks are written as 32 x 32"), ({"intermediate_size": 172}, 128, "ragged")],
)
def test_reads_back_and_transformers_computes_the_same(
    sizes: Any, block: int, note: str | None, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    written, model, dense = write_tiny(tmp_path, **sizes)
    assert (note is None) == (not any("blocks" in line for line in written.notes))
    assert note is None or any(note in line for line in written.notes)
    checkpoint = open_checkpoint(written.directory)
    assert checkpoint.config["quantization_config"]["weight_block_size"] == [block, block]
    for name, tensor in model.tensors.items():
        stored = checkpoint.get(name)
        if isinstance(tensor, FloatTensor):
            assert isinstance(stored, FloatTensor)
            assert stored.scheme == BLOCKS == checkpoint.scheme(name)
            assert torch.equal(stored.scale, tensor.scale)
            assert torch.equal(stored.codes, tensor.codes)
        else:
            assert torch.equal(stored, tensor)  # type: ignore[arg-type]
    assert verify_directory(written.directory, model).max_difference == 0
    if note == "ragged":
        return  # transformers 5.24 takes rows / scales for a block's height, whatever the config says
    loaded = transformers.AutoModelForCausalLM.from_pretrained(written.directory, dtype=torch.float32).eval()
    ids = torch.arange(30)[None] * 7 % 300
    for name, weight in dense.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weight), name
    with torch.no_grad():
        assert torch.allclose(loaded(ids).logits, dense(ids).logits, atol=1e-4)


def test_one_scale_for_a_matrix_and_static_inputs(tmp_path: Path) -> None:
    written, model, _ = write_tiny(tmp_path, FloatScheme(FloatFormat.E4M3, Granularity.TENSOR))
    checkpoint = open_checkpoint(written.directory)
    section = checkpoint.config["quantization_config"]
    assert (section["weight_block_size"], section["activation_scheme"]) == (None, "static")
    assert verify_directory(written.directory, model).max_difference == 0
    for module, quantizer in model.inputs.items():
        stored = checkpoint.input_quantizer(module)
        assert stored is not None
        assert stored.scheme == quantizer.scheme
        assert torch.equal(stored.scale, quantizer.scale)  # type: ignore[arg-type]
    assert checkpoint.notes == ()


def test_blocks_of_other_sizes_that_differ_within_128_are_read(tmp_path: Path) -> None:
    """Somebody else's blocks of 64: scales become those of rows and groups."""
    written, _, _ = write_tiny(tmp_path, **WHOLE)
    file = written.directory / "model.safetensors"
    name = "model.layers.0.mlp.up_proj"
    scale = torch.rand(4, 2) + 0.5
    save_file({**load_file(file), f"{name}.weight_scale_inv": scale}, file)
    config = json.loads((written.directory / "config.json").read_text())
    config["quantization_config"]["weight_block_size"] = [64, 64]
    (written.directory / "config.json").write_text(json.dumps(config))
    stored = open_checkpoint(written.directory).get(f"{name}.weight")
    codes = load_file(file)[f"{name}.weight"].float()
    assert isinstance(stored, FloatTensor)
    assert torch.equal(stored.dequantize(), codes * scale.repeat_interleave(64, 0).repeat_interleave(64, 1))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("fmt", "e5m2", "fmt: got 'e5m2'; e4m3 is read"),
        ("weight_block_size", [128], "weight_block_size: got"),
        ("weight_block_size", [64, 64], r"weight_scale_inv: is \[2, 1\], but blocks of \[64, 64\] make \[4, 2\]"),
        ("activation_scheme", "static", "activation_scale is missing"),
        ("surprise", 1, "surprise: got 1; this key is not understood"),
    ],
)
def test_contradictions_are_named(key: str, value: Any, message: str, tmp_path: Path) -> None:
    written, _, _ = write_tiny(tmp_path, **WHOLE)
    config = json.loads((written.directory / "config.json").read_text())
    config["quantization_config"][key] = value
    (written.directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=message):
        read_one_module(written.directory)


def read_one_module(directory: Path) -> None:
    checkpoint = open_checkpoint(directory)
    checkpoint.get("model.layers.0.mlp.up_proj.weight")
    checkpoint.input_quantizer("model.layers.0.mlp.up_proj")


@pytest.mark.parametrize("scheme", ["fp8", "nvfp4", "mxfp8"])
def test_what_the_format_cannot_hold_is_refused(scheme: str, tmp_path: Path) -> None:
    weights = NAMED[scheme].weights
    assert isinstance(weights, FloatScheme)
    with pytest.raises(InvalidField, match=r"format: got 'fp8'; model\.layers\.0\.mlp\.down_proj: it"):
        write_tiny(tmp_path, weights)
    assert not (tmp_path / "m").exists()


def test_common_block() -> None:
    assert common_block([(576, 1536), (192, 576)]) == 64
    assert common_block([(128, 384)]) == 128
    assert common_block([(64, 172)]) is None
