"""The architecture table: in every family, any positive scale of any pair leaves what the model computes."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.models.decoder import DecoderModel
from octavo.models.load import load_model
from octavo.ops.base import Experts, Norm
from octavo.quantize.pairs import apply_scale, linear_pairs, norm_pairs
from tests.checkpoints import FAMILIES, make_tiny
from tests.quantize.transformed import logits

TOKENS = list(range(3, 200, 5))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DecoderModel]:
    folder: Path = tmp_path_factory.mktemp("families")
    return {family: load_model(make_tiny(family, folder / family)).model for family in FAMILIES}


def copied(model: DecoderModel) -> DecoderModel:
    """With layers of its own; the tensors are shared."""
    return DecoderModel(
        model.spec, model.embedding, [copy.copy(layer) for layer in model.layers], model.final_norm, model.head
    )


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**30), spread=st.floats(0.0, 3.0))
def test_scales_change_nothing(models: dict[str, DecoderModel], family: str, seed: int, spread: float) -> None:
    expected, model = logits(models[family], TOKENS), copied(models[family])
    generator = torch.Generator().manual_seed(seed)
    for layer in model.layers:
        for pairs in (norm_pairs, linear_pairs):
            for pair in pairs(layer):
                noise = torch.randn(pair.linears[0].num_inputs, generator=generator)
                apply_scale(layer, pair, (noise * spread).exp())
    assert (logits(model, TOKENS) - expected).abs().max() < 3e-4
    if spread > 0.1:
        before, after = models[family].layers[0], model.layers[0]
        assert not torch.allclose(before.input_norm.weight, after.input_norm.weight, rtol=1e-3)
        assert not torch.allclose(torch.as_tensor(before.mlps[0].up.weight), torch.as_tensor(after.mlps[0].up.weight))


def test_values_are_a_pair_only_without_gqa(tmp_path: Path) -> None:
    """v_out == o_in: then alone a value channel is read by one column of o."""
    grouped = load_model(make_tiny("llama", tmp_path / "gqa")).model.layers[0]
    assert [pair.previous.name for pair in linear_pairs(grouped)] == [grouped.mlps[0].up.name]
    whole = load_model(make_tiny("llama-bias", tmp_path / "mha", num_key_value_heads=6)).model
    layer = whole.layers[0]
    assert [pair.previous.name for pair in linear_pairs(layer)] == [layer.v.name, layer.mlps[0].up.name]
    expected = logits(whole, TOKENS)
    for pair in linear_pairs(layer):
        apply_scale(layer, pair, torch.linspace(0.1, 9, pair.linears[0].num_inputs))
    assert layer.v.bias is not None
    assert (logits(whole, TOKENS) - expected).abs().max() < 1e-4


def test_routers_read_what_experts_read(models: dict[str, DecoderModel]) -> None:
    layer = copied(models["mixtral"]).layers[0]
    assert isinstance(layer.mlp, Experts)
    _, pair = norm_pairs(layer)
    assert pair.router is layer.mlp.router
    assert len(pair.linears) == 2 * layer.mlp.num_experts
    assert pair.reader == layer.mlp.router.name
    assert isinstance(pair.previous, Norm)
