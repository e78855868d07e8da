"""AWQ checkpoints: documented words, an independent reader, and values that survive a journey through formats."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from octavo.core.errors import CheckpointError, InvalidField
from octavo.numerics.packed_tensor import PackedTensor
from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.numerics.scheme import IntegerScheme
from octavo.weights.awq_layout import decode_awq, encode_awq
from octavo.weights.awq_writer import write_awq
from octavo.weights.checkpoint import open_checkpoint
from octavo.weights.second_reader import verify_directory
from octavo.weights.stored_model import StoredModel
from tests.checkpoints import edit_config
from tests.weights.stored import stored_tiny
from tests.weights.test_gptq import random_packed, read_with_gptqmodel


def test_words_are_the_documented_ones() -> None:
    """Nibble i holds output 0, 2, 4, 6, 1, 3, 5, 7; zeros are stored as they are."""
    codes = (torch.arange(8) - 8).to(torch.int8).reshape(8, 1).repeat(1, 16)
    packed = PackedTensor.from_codes(codes, torch.ones(8, 1, dtype=torch.float16), None, IntegerScheme(4, 16))
    parts = encode_awq(packed)
    assert parts["qweight"].tolist() == [[0x75316420]] * 16
    assert parts["qzeros"].tolist() == [[0x88888888 - 2**32]]


@settings(max_examples=15, deadline=None)
@given(group=st.sampled_from([None, 32]), symmetric=st.booleans(), seed=st.integers(0, 99))
def test_round_trip(group: int | None, symmetric: bool, seed: int) -> None:
    packed = random_packed(24, 96, IntegerScheme(4, group, symmetric), seed)
    stored = decode_awq("m", encode_awq(packed), group or -1)
    assert stored.scheme == packed.scheme
    assert torch.equal(stored.dequantize(), packed.dequantize())


@pytest.mark.parametrize("symmetric", [True, False])
def test_compressed_tensors_own_converter_reads_it(symmetric: bool, tmp_path: Path) -> None:
    converters = pytest.importorskip("compressed_tensors.entrypoints.convert.converters.autoawq")
    helpers = pytest.importorskip("compressed_tensors.compressors.pack_quantized.helpers")
    model, _ = stored_tiny("llama-tied", tmp_path, IntegerScheme(4, 32, symmetric))
    write_awq(tmp_path / "a", model)
    assert verify_directory(tmp_path / "a", model).verified
    section = json.loads((tmp_path / "a" / "config.json").read_text())["quantization_config"]
    converter = converters.AutoAWQConverter.from_autoawq_config(section)
    theirs = converter.process(dict(load_file(tmp_path / "a" / "model.safetensors")))
    for name, tensor in model.tensors.items():
        if isinstance(tensor, QuantizedTensor):
            module = name.removesuffix(".weight")
            codes = helpers.unpack_from_int32(theirs[f"{module}.weight_packed"], 4, torch.Size(tensor.shape))
            groups = torch.Size((tensor.shape[0], tensor.shape[1] // 32))
            zeros = helpers.unpack_from_int32(theirs[f"{module}.weight_zero_point"], 4, groups, packed_dim=0)
            difference = codes.reshape(len(codes), -1, 32).float() - zeros.unsqueeze(-1).float()
            values = difference * theirs[f"{module}.weight_scale"].float().unsqueeze(-1)
            assert torch.equal(values.reshape(tensor.shape), tensor.dequantize())


def test_one_group_size_for_all(tmp_path: Path) -> None:
    model, _ = stored_tiny("llama-tied", tmp_path, IntegerScheme(4, 32), {"layers.1.mlp.up_proj": IntegerScheme(4, 16)})
    with pytest.raises(InvalidField, match=r"model\.layers\.1\.mlp\.up_proj: .* one group size"):
        write_awq(tmp_path / "a", model)
    assert not (tmp_path / "a").exists()


def test_other_versions_are_refused(tmp_path: Path) -> None:
    model, _ = stored_tiny("llama-tied", tmp_path, IntegerScheme(4, 32))
    write_awq(tmp_path / "a", model)
    section = json.loads((tmp_path / "a" / "config.json").read_text())["quantization_config"]
    edit_config(tmp_path / "a", quantization_config={**section, "version": "gemv"})
    with pytest.raises(CheckpointError, match="version: got 'gemv'"):
        open_checkpoint(tmp_path / "a")


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    packed = random_packed(32, 64, IntegerScheme(4, 32, False))
    write_awq(tmp_path / "a", StoredModel({"a.q_proj.weight": packed}, {"tie_word_embeddings": True}))
    tensors = load_file(tmp_path / "a" / "model.safetensors")
    del tensors["a.q_proj.scales"]
    save_file(tensors, tmp_path / "a" / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"a\.q_proj\.scales is missing"):
        open_checkpoint(tmp_path / "a")


@pytest.mark.slow
def test_gptqmodel_decodes_the_same_numbers(tmp_path: Path) -> None:
    model, _ = stored_tiny("llama-tied", tmp_path, IntegerScheme(4, 32, False))
    write_awq(tmp_path / "awq", model)
    theirs = read_with_gptqmodel(tmp_path / "awq", tmp_path / "weights")
    packed = {name: tensor.dequantize() for name, tensor in model.tensors.items() if isinstance(tensor, PackedTensor)}
    assert theirs.keys() == packed.keys()
    assert all(torch.equal(theirs[name], packed[name]) for name in packed)
