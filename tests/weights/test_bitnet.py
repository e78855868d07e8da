"""BitNet checkpoints: transformers' own BitLinear computes what ours does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from octavo.core.errors import CheckpointError, InvalidField
from octavo.models.load import load_model
from octavo.numerics.packed_tensor import PackedTensor
from octavo.numerics.scheme import IntegerScheme
from octavo.ops.reference.batch import whole_prompts
from octavo.ops.reference.ops import ReferenceOps
from octavo.weights.bitnet_directory import INPUTS
from octavo.weights.bitnet_layout import TERNARY, LinearClass, absmean_ternary, decode_bitnet, encode_bitnet
from octavo.weights.bitnet_writer import write_bitnet
from octavo.weights.checkpoint import open_checkpoint
from octavo.weights.second_reader import verify_directory
from octavo.weights.stored_model import StoredModel
from tests.checkpoints import edit_config, make_tiny
from tests.weights.stored import logits_of, stored_tiny


def force_eager() -> Any:
    """transformers compiles BitLinear's helpers, which takes minutes and changes nothing."""
    return torch.compiler.set_stance("force_eager")


def our_logits(directory: Path) -> torch.Tensor:
    loaded = load_model(directory)
    assert loaded.model.layers[0].q.inputs == INPUTS
    ids = torch.arange(40).reshape(2, 20) * 7 % loaded.spec.vocab_size
    return loaded.model.forward(ReferenceOps(), whole_prompts(ids.tolist())).reshape(2, 20, -1)


def their_model(directory: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


def assert_same_linears(directory: Path) -> None:
    """Every linear, on the same inputs: ours and transformers' class."""
    checkpoint, theirs = open_checkpoint(directory), their_model(directory)
    for module in checkpoint.modules:  # type: ignore[attr-defined]
        weight, bias = checkpoint.get(f"{module}.weight"), f"{module}.bias"
        assert isinstance(weight, PackedTensor)
        x = torch.randn(5, weight.shape[1], generator=torch.Generator().manual_seed(1))
        ours = INPUTS.round(x) @ weight.dequantize().T
        if bias in checkpoint.names():
            ours += checkpoint.get(bias)  # type: ignore[operator]
        assert (theirs.get_submodule(module)(x) - ours).abs().max() < 1e-5 * ours.abs().max()


def test_bytes_are_the_documented_ones() -> None:
    """Bits 2i of row r hold output i * out / 4 + r, plus one."""
    codes = torch.tensor([[-1], [0], [1], [0], [-1], [1], [1], [-1]], dtype=torch.int8)
    packed = PackedTensor.from_codes(codes, torch.full((8, 1), 0.5), None, TERNARY)
    parts = encode_bitnet(packed, LinearClass.MULTIPLIES)
    assert parts["weight"].tolist() == [[0 | 2 << 2 | 0 << 4 | 2 << 6], [1 | 1 << 2 | 2 << 4 | 0 << 6]]
    assert parts["weight_scale"].tolist() == [0.5]
    assert encode_bitnet(packed, LinearClass.DIVIDES)["weight_scale"].tolist() == [2.0]


@pytest.mark.parametrize("linear_class", list(LinearClass))
def test_transformers_computes_the_same(linear_class: LinearClass, tmp_path: Path) -> None:
    """Linears on equal inputs, to float32's rounding. Logits at most positions: an input that lies between two int8
    codes may fall either way, and what follows in its text then differs."""
    model, _ = stored_tiny("llama", tmp_path, TERNARY, dense_dtype=torch.float32)
    write_bitnet(tmp_path / "b", model, linear_class=linear_class)
    with force_eager():
        assert_same_linears(tmp_path / "b")
        theirs, ours = logits_of(their_model(tmp_path / "b")), our_logits(tmp_path / "b")
    assert theirs.abs().max() > 1
    equal = (theirs - ours).abs().amax(-1) < 1e-4
    assert equal.float().mean() > 0.75


def test_what_transformers_rounds_in_every_step_is_rounded_when_read(tmp_path: Path) -> None:
    source = make_tiny("llama", tmp_path / "m")
    section = {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online"}
    edit_config(source, quantization_config=section)
    with force_eager():
        assert_same_linears(source)


def test_autobitlinear_keeps_every_number(tmp_path: Path) -> None:
    model, _ = stored_tiny("llama-tied", tmp_path, TERNARY)
    write_bitnet(tmp_path / "b", model)
    checkpoint = open_checkpoint(tmp_path / "b")
    for name, tensor in model.tensors.items():
        if isinstance(tensor, PackedTensor):
            stored = checkpoint.get(name)
            assert isinstance(stored, PackedTensor)
            assert stored.scheme == TERNARY
            assert torch.equal(stored.dequantize(), tensor.dequantize())
    assert verify_directory(tmp_path / "b", model).verified


def test_biases_make_it_bitlinear(tmp_path: Path) -> None:
    """transformers' AutoBitLinear multiplies the bias by the scale."""
    model, _ = stored_tiny("llama-bias", tmp_path, TERNARY, dense_dtype=torch.float32)
    write_bitnet(tmp_path / "b", model)
    assert open_checkpoint(tmp_path / "b").tensor_type("model.layers.0.mlp.up_proj.weight") == "bitnet bitlinear"
    with force_eager():
        assert_same_linears(tmp_path / "b")
    with pytest.raises(InvalidField, match="use bitlinear"):
        write_bitnet(tmp_path / "other", model, linear_class=LinearClass.MULTIPLIES)


def test_what_is_not_bitnet_is_refused(tmp_path: Path) -> None:
    model, _ = stored_tiny("llama-tied", tmp_path, IntegerScheme(4, 32))
    with pytest.raises(InvalidField, match="take training to make"):
        write_bitnet(tmp_path / "b", model)
    ternary = absmean_ternary(torch.randn(8, 16))
    unrounded = StoredModel({"a.q_proj.weight": ternary}, {"tie_word_embeddings": True})
    with pytest.raises(InvalidField, match="inputs are not rounded"):
        write_bitnet(tmp_path / "b", unrounded)
    assert not (tmp_path / "b").exists()


def test_the_code_3_is_refused() -> None:
    parts = {"weight": torch.full((2, 4), 255, dtype=torch.uint8), "weight_scale": torch.ones(1)}
    with pytest.raises(CheckpointError, match="code 3"):
        decode_bitnet("a.q_proj", parts, LinearClass.DIVIDES)
