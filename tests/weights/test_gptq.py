"""GPTQ checkpoints: written bit by bit as documented; foreign and damaged files are understood or refused."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from octavo.core.errors import CheckpointError, InvalidField
from octavo.numerics.packed_tensor import PackedTensor
from octavo.numerics.scheme import IntegerScheme, LinearScheme
from octavo.weights.checkpoint import open_checkpoint
from octavo.weights.gptq_layout import GptqArgs, GptqVersion, decode_gptq, encode_gptq
from octavo.weights.gptq_writer import gptq_refusal, write_gptq
from octavo.weights.second_reader import verify_directory
from octavo.weights.stored_model import StoredModel
from tests.checkpoints import edit_config
from tests.weights.stored import stored_tiny

PEER = Path.home() / ".cache/octavo/peers/gptqmodel/bin/python"


def random_packed(rows: int, columns: int, scheme: IntegerScheme, seed: int = 0) -> PackedTensor:
    """Codes and zero points over the whole range, scales of both signs."""
    generator = torch.Generator().manual_seed(seed)
    low, high, groups = scheme.lowest, scheme.highest + 1, scheme.num_groups(columns)
    codes = torch.randint(low, high, (rows, columns), generator=generator, dtype=torch.int8)
    zeros = torch.randint(low, high, (rows, groups), generator=generator, dtype=torch.int8)
    scale = torch.randn(rows, groups, generator=generator).to(torch.float16)
    return PackedTensor.from_codes(codes, scale, None if scheme.symmetric else zeros, scheme)


def bits_of(words: list[int]) -> list[int]:
    return [word >> bit & 1 for word in words for bit in range(32)]


def test_words_are_the_documented_ones() -> None:
    """By hand: codes 0..15 along the inputs, lowest bits first; a symmetric zero is 7 in version 1, 8 in 2."""
    codes = (torch.arange(16) % 16 - 8).to(torch.int8).repeat(8, 1)
    packed = PackedTensor.from_codes(codes, torch.ones(8, 1, dtype=torch.float16), None, IntegerScheme(4))
    parts = encode_gptq(packed, GptqVersion.V1)
    assert [word & 0xFFFFFFFF for word in parts["qweight"][:, 0].tolist()] == [0x76543210, 0xFEDCBA98]
    assert parts["qzeros"].tolist() == [[0x77777777]]
    assert encode_gptq(packed, GptqVersion.V2)["qzeros"].tolist() == [[0x88888888 - 2**32]]
    assert parts["g_idx"].tolist() == [0] * 16
    assert parts["scales"].shape == (1, 8)


def test_three_bits_are_one_stream() -> None:
    """32 codes in three words: ten, one split 2 + 1, ten, one split 1 + 2, ten."""
    codes = torch.arange(32).remainder(8).sub(4).to(torch.int8).repeat(32, 1)
    packed = PackedTensor.from_codes(codes, torch.ones(32, 1, dtype=torch.float16), None, IntegerScheme(3))
    words = [word & 0xFFFFFFFF for word in encode_gptq(packed, GptqVersion.V1)["qweight"][:, 0].tolist()]
    stream = bits_of(words)
    assert [sum(stream[3 * i + bit] << bit for bit in range(3)) for i in range(32)] == [i % 8 for i in range(32)]
    assert words[0] >> 30 == 10 % 8 & 3
    assert words[1] & 1 == 10 % 8 >> 2


@settings(max_examples=25, deadline=None)
@given(
    bits=st.sampled_from([2, 3, 4, 8]),
    group=st.sampled_from([None, 32]),
    symmetric=st.booleans(),
    version=st.sampled_from(list(GptqVersion)),
    seed=st.integers(0, 99),
)
def test_round_trip(bits: int, group: int | None, symmetric: bool, version: GptqVersion, seed: int) -> None:
    """Of any codes, zeros and scales; a zero of 0, which version 1 wraps, comes back too."""
    packed = random_packed(32, 96, IntegerScheme(bits, group, symmetric), seed)
    args = GptqArgs(bits, group or -1, symmetric)
    module = decode_gptq("m", encode_gptq(packed, version), args, version)
    assert module.scheme == packed.scheme
    assert torch.equal(module.packed(packed.scheme).dequantize(), packed.dequantize())
    assert torch.equal(module.dense(), packed.dequantize())


def test_words_with_borrows_are_undone() -> None:
    """GPTQModel writes version 1 by subtracting from whole words: a zero of 0 borrows from its neighbour."""
    packed = random_packed(32, 96, IntegerScheme(4, 32, False), 3)
    parts = encode_gptq(packed, GptqVersion.V2)
    parts["qzeros"] = parts["qzeros"] - 0x11111111
    args = GptqArgs(4, 32, False)
    assert not torch.equal(decode_gptq("m", parts, args, GptqVersion.V1).dense(), packed.dequantize())
    assert torch.equal(decode_gptq("m", parts, args, GptqVersion.V1, borrowed=True).dense(), packed.dequantize())


@pytest.mark.parametrize(
    ("scheme", "version"),
    [(IntegerScheme(4, 32), "gptq"), (IntegerScheme(3, 32, False), "gptq_v2"), (IntegerScheme(8), "gptq")],
)
def test_directory(scheme: IntegerScheme, version: str, tmp_path: Path) -> None:
    model, _ = stored_tiny("llama-tied", tmp_path, scheme)
    written = write_gptq(tmp_path / "g", model)
    checkpoint = open_checkpoint(tmp_path / "g")
    assert checkpoint.names() == sorted(model.tensors)
    assert checkpoint.notes == ()
    assert written.total_bytes == checkpoint.num_bytes
    for name, tensor in model.tensors.items():
        stored = checkpoint.get(name)
        if isinstance(tensor, PackedTensor):
            assert isinstance(stored, PackedTensor)
            assert stored.scheme == checkpoint.scheme(name) == scheme
            assert torch.equal(stored.dequantize(), tensor.dequantize())
        else:
            assert torch.equal(stored, tensor)  # type: ignore[arg-type]
    assert verify_directory(tmp_path / "g", model).verified
    section = json.loads((tmp_path / "g" / "config.json").read_text())["quantization_config"]
    side_file = json.loads((tmp_path / "g" / "quantize_config.json").read_text())
    assert section["checkpoint_format"] == side_file["checkpoint_format"] == version
    assert section["bits"] == scheme.bits
    assert section["meta"]["quantizer"][0].startswith("octavo:")


def test_exceptions_are_written_as_dynamic_and_read_back(tmp_path: Path) -> None:
    special = {"layers.1.mlp.down_proj": IntegerScheme(8, 16), "layers.2.self_attn.o_proj": None}
    model, _ = stored_tiny("llama", tmp_path, IntegerScheme(4, 32), special)
    written = write_gptq(tmp_path / "g", model)
    assert any("dynamic" in note for note in written.notes)
    checkpoint = open_checkpoint(tmp_path / "g")
    assert checkpoint.scheme("model.layers.1.mlp.down_proj.weight") == IntegerScheme(8, 16)
    assert checkpoint.scheme("model.layers.2.self_attn.o_proj.weight") is None
    assert verify_directory(tmp_path / "g", model).verified


def rewrite(directory: Path, change: Any, **section: Any) -> Path:
    """Change stored tensors in place, and fields of both configs."""
    file = directory / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    change(tensors)
    save_file(tensors, file)
    config = json.loads((directory / "config.json").read_text())["quantization_config"]
    edit_config(directory, quantization_config={**config, **section})
    (directory / "quantize_config.json").unlink(missing_ok=True)
    return directory


def test_mislabelled_zeros_are_found_in_the_data(tmp_path: Path) -> None:
    """Users' cases 4 and 5: version 2's zeros in a file that says version 1."""
    model, _ = stored_tiny("llama-tied", tmp_path, IntegerScheme(4, 32))
    write_gptq(tmp_path / "g", model, version=GptqVersion.V2)
    checkpoint = open_checkpoint(rewrite(tmp_path / "g", lambda tensors: None, checkpoint_format="gptq"))
    assert any("read as gptq_v2" in note for note in checkpoint.notes)
    name = "model.layers.0.mlp.up_proj.weight"
    stored, meant = checkpoint.get(name), model.tensors[name]
    assert torch.equal(stored.dequantize(), meant.dequantize())  # type: ignore[union-attr]


def test_zero_of_0_is_refused_in_version_1(tmp_path: Path) -> None:
    """User's case 3: the encoding wraps."""
    packed = random_packed(32, 64, IntegerScheme(4, 32, False))
    packed.zero_point[0, 0] = -8  # type: ignore[index]
    model = StoredModel({"model.q_proj.weight": packed}, {"tie_word_embeddings": True})
    with pytest.raises(InvalidField, match=r"zero points of model\.q_proj are 0.*gptq_v2"):
        write_gptq(tmp_path / "g", model, version=GptqVersion.V1)
    assert not (tmp_path / "g").exists()
    write_gptq(tmp_path / "g", model)
    assert open_checkpoint(tmp_path / "g").get("model.q_proj.weight").dequantize().equal(packed.dequantize())  # type: ignore[union-attr]


def test_act_order_becomes_a_dense_matrix_of_the_same_values(tmp_path: Path) -> None:
    packed = random_packed(32, 64, IntegerScheme(4, 32, False))
    model = StoredModel({"model.q_proj.weight": packed}, {"tie_word_embeddings": True})
    write_gptq(tmp_path / "g", model)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0))

    def shuffle(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.q_proj.g_idx"] = tensors["model.q_proj.g_idx"][order]

    checkpoint = open_checkpoint(rewrite(tmp_path / "g", shuffle, desc_act=True))
    groups = (torch.arange(64) // 32)[order]
    assert packed.zero_point is not None
    expected = (packed.codes().float() - packed.zero_point[:, groups]) * packed.scale[:, groups].float()
    assert torch.equal(checkpoint.get("model.q_proj.weight"), expected)  # type: ignore[arg-type]
    assert checkpoint.scheme("model.q_proj.weight") is None
    assert any("desc_act" in note for note in checkpoint.notes)


def test_config_in_the_side_file_alone_and_in_contradiction(tmp_path: Path) -> None:
    model, _ = stored_tiny("llama-tied", tmp_path, IntegerScheme(4, 32))
    write_gptq(tmp_path / "g", model)
    side_file = tmp_path / "g" / "quantize_config.json"
    fields = json.loads(side_file.read_text())
    side_file.write_text(json.dumps({**fields, "group_size": 64}))
    with pytest.raises(CheckpointError, match=r"group_size is 32, but .* says 64"):
        open_checkpoint(tmp_path / "g")
    side_file.write_text(json.dumps(fields))
    config = json.loads((tmp_path / "g" / "config.json").read_text())
    del config["quantization_config"]
    (tmp_path / "g" / "config.json").write_text(json.dumps(config))
    assert open_checkpoint(tmp_path / "g").scheme("model.layers.0.mlp.up_proj.weight") == IntegerScheme(4, 32)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"bits": 5}, "bits: got 5"),
        ({"checkpoint_format": "marlin"}, "checkpoint_format: got 'marlin'"),
        ({"adapter": {"name": "eora"}}, "adapter"),
        ({"dynamic": {"-:.*up_proj": {}}}, "keeps model.layers.0.mlp.up_proj dense"),
        ({"dynamic": {"up_proj[": {}}}, "not a valid pattern"),
    ],
)
def test_what_is_not_understood_is_refused(fields: dict[str, Any], text: str, tmp_path: Path) -> None:
    model, _ = stored_tiny("llama-tied", tmp_path, IntegerScheme(4, 32))
    write_gptq(tmp_path / "g", model)
    with pytest.raises(CheckpointError, match=text.replace("[", r"\[")):
        open_checkpoint(rewrite(tmp_path / "g", lambda tensors: None, **fields))


@pytest.mark.parametrize(
    ("module", "scheme", "shape", "text"),
    [
        ("a.q_proj", IntegerScheme(4), (12, 64), "12 outputs do not fill whole words"),
        (
            "a.q_proj",
            IntegerScheme(3),
            (32, 48),
            "48 inputs do not fill whole words: 3-bit GPTQ",
        ),
        ("model.embed_tokens", IntegerScheme(8), (64, 64), "embedding"),
    ],
)
def test_refusals_before_anything_is_written(
    module: str, scheme: IntegerScheme, shape: tuple[int, int], text: str, tmp_path: Path
) -> None:
    assert text in str(gptq_refusal(module, LinearScheme(scheme), shape))
    model = StoredModel({f"{module}.weight": random_packed(*shape, scheme)}, {"tie_word_embeddings": True})
    with pytest.raises(InvalidField, match=module):
        write_gptq(tmp_path / "g", model)
    assert not (tmp_path / "g").exists()


def test_scales_that_float16_would_round_are_refused(tmp_path: Path) -> None:
    packed = random_packed(32, 64, IntegerScheme(4, 32))
    wide = PackedTensor(packed.words, packed.scale.float() + 1e-6, None, packed.scheme, packed.shape)
    with pytest.raises(InvalidField, match="no float16 numbers; quantize with scale_dtype=float16"):
        write_gptq(tmp_path / "g", StoredModel({"a.q_proj.weight": wide}, {"tie_word_embeddings": True}))


def read_with_gptqmodel(directory: Path, out: Path) -> dict[str, torch.Tensor]:
    """Every quantized weight as gptqmodel's unpackers, in its own environment, decode it."""
    if not PEER.exists():
        pytest.skip("gptqmodel's own environment is not on this machine")
    reader = Path(__file__).with_name("gptqmodel_reader.py")
    subprocess.run([PEER, reader, directory, out], check=True, timeout=170)
    return load_file(out)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [IntegerScheme(4, 32), IntegerScheme(3, 32, False)], ids=["sym4", "asym3"])
def test_gptqmodel_decodes_the_same_numbers(scheme: IntegerScheme, tmp_path: Path) -> None:
    model, _ = stored_tiny("llama-tied", tmp_path, scheme)
    write_gptq(tmp_path / "gptq", model)
    theirs = read_with_gptqmodel(tmp_path / "gptq", tmp_path / "weights")
    packed = {name: tensor.dequantize() for name, tensor in model.tensors.items() if isinstance(tensor, PackedTensor)}
    assert theirs.keys() == packed.keys()
    assert all(torch.equal(theirs[name], packed[name]) for name in packed)
