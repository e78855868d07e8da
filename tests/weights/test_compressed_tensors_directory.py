"""Reading compressed-tensors directories: targets, ignore, missing pieces, keys that are not understood."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from octavo.core.errors import CheckpointError
from octavo.numerics.packed_tensor import PackedTensor
from octavo.numerics.scheme import IntegerScheme
from octavo.weights.checkpoint import open_checkpoint
from octavo.weights.compressed_tensors_args import Layout
from octavo.weights.compressed_tensors_config import parse_quantization_config
from octavo.weights.compressed_tensors_writer import write_compressed_tensors
from octavo.weights.stored_model import StoredModel
from tests.weights.quantized import random_packed

INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32, "dynamic": False}
INT8 = {"num_bits": 8, "type": "int", "symmetric": False, "strategy": "channel", "group_size": None}
SECTION: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "mixed-precision",
    "quantization_status": "compressed",
    "config_groups": {
        "group_0": {"targets": ["Linear"], "weights": INT4, "format": "pack-quantized"},
        "group_1": {"targets": ["re:.*down_proj$", "Embedding"], "weights": INT8, "format": "int-quantized"},
        "group_2": {"targets": ["layers.0.down_proj"], "weights": {**INT4, "num_bits": 3}, "format": "pack-quantized"},
    },
    "ignore": ["lm_head", "re:.*gate$"],
}


def make_directory(folder: Path) -> Path:
    tensors = {
        "model.embed_tokens.weight": random_packed(50, 64, IntegerScheme(8)),
        "model.layers.0.q_proj.weight": random_packed(40, 64, IntegerScheme(4, 32, symmetric=False)),
        "model.layers.0.down_proj.weight": random_packed(64, 96, IntegerScheme(3)),
        "model.norm.weight": torch.ones(64),
    }
    write_compressed_tensors(folder, StoredModel(tensors, {"model_type": "llama", "tie_word_embeddings": True}))
    return folder


def edit_tensors(folder: Path, remove: str = "", **add: torch.Tensor) -> None:
    file = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items() if name != remove}
    save_file({**tensors, **{name.replace("__", "."): tensor for name, tensor in add.items()}}, file)


def test_targets_from_the_most_specific() -> None:
    parsed = parse_quantization_config(SECTION, "x")
    linear, down, embedding = (parsed.format_of(m) for m in ("layers.1.q_proj", "layers.1.down_proj", "embed_tokens"))
    assert linear is not None
    assert (linear.scheme, linear.layout) == (IntegerScheme(4, 32), Layout.PACK_QUANTIZED)
    assert down == embedding
    assert down is not None
    assert (down.scheme, down.layout) == (IntegerScheme(8, symmetric=False), Layout.INT_QUANTIZED)
    by_name = parsed.format_of("layers.0.down_proj")
    assert by_name is not None
    assert by_name.scheme.bits == 3
    assert parsed.format_of("lm_head") is None
    assert parsed.format_of("layers.3.gate") is None


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("kv_cache_scheme", {"num_bits": 4}, r"kv_cache_scheme\.num_bits: got 4"),
        ("transform_config", {"config_groups": {"r1": {}}}, "transform_config"),
        ("sparsity_config", {"format": "sparse-bitmask"}, "sparsity_config"),
        ("quantization_status", "calibration", "quantization_status"),
        ("config_groups", {"W4A16": ["Linear"]}, "presets"),
        ("something_new", 1, "something_new: got 1; this key is not understood"),
        ("config_groups.group_0.input_activations", {"num_bits": 8, "dynamic": True}, "group_0.input_activations: got"),
        ("config_groups.group_0.input_activations", {"symmetric": False}, "input_activations: got .*False.*inputs are"),
        ("config_groups.group_0.output_activations", {"num_bits": 8}, "group_0.output_activations"),
        (
            "config_groups.group_0.format",
            "marlin-24",
            "group_0.format: got 'marlin-24'; these are read: pack-quantized",
        ),
        ("config_groups.group_0.format", "float-quantized", "type: got 'int'; float-quantized holds floating-point"),
        ("config_groups.group_0.weights.type", "float", "weights.type: got 'float'; pack-quantized holds integers"),
        ("config_groups.group_0.weights.num_bits", 5, "weights: bits: got 5"),
        ("config_groups.group_0.weights.group_size", 48, "weights: group: got 48"),
        ("config_groups.group_0.weights.actorder", "group", "actorder: got 'group'; an order with g_idx"),
        ("config_groups.group_0.weights.strategy", "block", "strategy: got 'block'"),
        ("config_groups.group_0.weights.dynamic", True, "dynamic"),
        ("config_groups.group_0.weights.mystery", 1, "weights.mystery"),
    ],
)
def test_what_is_not_understood_is_named(path: str, value: Any, message: str) -> None:
    section = copy.deepcopy(SECTION)
    *parents, key = path.split(".")
    place = section
    for parent in parents:
        place = place[parent]
    place[key] = value
    with pytest.raises(CheckpointError, match=message):
        parse_quantization_config(section, "config.json")


def test_what_changes_nothing_is_accepted() -> None:
    section = copy.deepcopy(SECTION)
    section |= {"sparsity_config": {}, "transform_config": {}, "global_compression_ratio": 1.5, "version": "0.15"}
    section["config_groups"]["group_0"]["weights"] |= {"actorder": "static", "observer": "mse", "zp_dtype": None}
    parse_quantization_config(section, "x")


def test_names_shapes_and_bytes(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(make_directory(tmp_path / "m"))
    assert checkpoint.names() == [
        "model.embed_tokens.weight",
        "model.layers.0.down_proj.weight",
        "model.layers.0.q_proj.weight",
        "model.norm.weight",
    ]
    stored = load_file(tmp_path / "m" / "model.safetensors")
    assert sum(map(checkpoint.tensor_bytes, checkpoint.names())) == sum(tensor.nbytes for tensor in stored.values())
    for name in checkpoint.names():
        assert checkpoint.shape(name) == tuple(checkpoint.get(name).shape)
    assert isinstance(checkpoint.get("model.layers.0.q_proj.weight"), PackedTensor)


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.q_proj.weight_scale",
        "model.layers.0.q_proj.weight_packed",
        "model.layers.0.q_proj.weight_zero_point",
        "model.layers.0.down_proj.weight_shape",
        "model.embed_tokens.weight_scale",
    ],
)
def test_a_missing_part_is_named(name: str, tmp_path: Path) -> None:
    edit_tensors(make_directory(tmp_path / "m"), remove=name)
    with pytest.raises(CheckpointError, match=f"tensor {name} is missing"):
        open_checkpoint(tmp_path / "m")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model__layers__0__q_proj__weight_g_idx", "weight_g_idx is a quantization parameter that is not read"),
        ("model__layers__0__k_scale", "k_scale has no kv_cache_scheme that explains it"),
        ("model__layers__0__down_proj__weight_zero_point", "has no place in"),
        ("model__layers__0__o_proj__weight_scale", r"o_proj\.weight_scale belongs to a packed module, but no target"),
    ],
)
def test_a_surplus_part_is_named(name: str, message: str, tmp_path: Path) -> None:
    edit_tensors(make_directory(tmp_path / "m"), **{name: torch.ones(1, 1)})
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(tmp_path / "m")


def test_unknown_dense_tensors_are_left_to_the_loader(tmp_path: Path) -> None:
    edit_tensors(make_directory(tmp_path / "m"), surplus__weight=torch.ones(2, 2))
    assert "surplus.weight" in open_checkpoint(tmp_path / "m").names()


def test_a_tied_head_with_other_scales_is_refused(tmp_path: Path) -> None:
    edit_tensors(make_directory(tmp_path / "m"), lm_head__weight_scale=torch.ones(50, 1, dtype=torch.float16))
    with pytest.raises(CheckpointError, match=r"lm_head\.weight_scale differs from model\.embed_tokens"):
        open_checkpoint(tmp_path / "m")


def test_a_packed_module_that_is_ignored_is_refused(tmp_path: Path) -> None:
    config_file = make_directory(tmp_path / "m") / "config.json"
    config = json.loads(config_file.read_text())
    config["quantization_config"]["ignore"] = ["re:.*q_proj"]
    config_file.write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"q_proj\.weight_packed belongs to a packed module, but no target"):
        open_checkpoint(tmp_path / "m")
