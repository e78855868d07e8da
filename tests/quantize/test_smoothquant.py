"""SmoothQuant: activations with absurd outliers in eight bits; alpha given or searched; channels that never fire."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from octavo.api import plan_quantization
from octavo.core.errors import InvalidField
from octavo.ops.base import Norm
from octavo.quantize.pairs import norm_pairs
from octavo.quantize.recipe import Recipe
from octavo.quantize.smoothquant import candidate, norm_maxima, smooth
from tests.quantize.transformed import (
    STORIES,
    calibration,
    divergence,
    first_states,
    logits,
    one_token_calibration,
    quantized,
    stories,
    unseen_tokens,
    with_outliers,
)

pytestmark = pytest.mark.skipif(not STORIES.exists(), reason="needs ../shared/data/models/stories260k")
W8A8 = Recipe("rtn", scheme="w8a8", embedding_bits=16, search=False)


@pytest.mark.parametrize("scheme", ["w8a8", "w8a8-static"])
def test_outlier_channels_survive_eight_bit_activations(scheme: str, tmp_path: Path) -> None:
    """One scale for a token, set by a channel a thousand times as large, leaves nothing of the others."""
    text, tokens = calibration(3), unseen_tokens(192)
    expected = logits(stories(), tokens)
    losses = {}
    for transforms in ((), ("smooth",)):
        model = with_outliers(stories())
        smoothing = 0.6 if transforms and scheme == "w8a8-static" else None
        recipe = replace(W8A8, scheme=scheme, transforms=transforms, smoothing=smoothing)
        quantized(model, recipe, text, tmp_path / f"j{len(transforms)}")
        losses[transforms] = divergence(expected, logits(model, tokens))
    assert losses[()] > 1.0
    assert losses[("smooth",)] < 0.05


def test_scale_is_the_papers_formula_up_to_a_factor() -> None:
    model = stories()
    pair = next(norm_pairs(model.layers[0]))
    maxima = torch.rand(64) * 5 + 0.1
    found = candidate(pair, maxima, 0.7).scale
    assert found is not None
    weights = torch.cat([torch.as_tensor(linear.weight) for linear in pair.linears]).abs().max(0).values
    ratio = found / (maxima**0.7 / weights**0.3)
    assert torch.allclose(ratio, ratio[0].expand_as(ratio), rtol=1e-4)
    assert found.max() * found.min() == pytest.approx(1.0, rel=1e-4)


def test_silent_channels_are_left_alone() -> None:
    model = stories()
    pair = next(norm_pairs(model.layers[0]))
    maxima = torch.rand(64) + 0.1
    maxima[[5, 50]] = 0
    scale = candidate(pair, maxima, 0.9).scale
    assert scale is not None
    assert scale[5] == scale[50] == 1.0
    assert bool((torch.isfinite(scale) & (scale > 0)).all())
    assert candidate(pair, torch.zeros(64), 0.5).scale is None


def test_maxima_are_those_of_all_tokens_and_both_norms() -> None:
    model = stories()
    states = first_states(model, calibration(2).segments)
    maxima = norm_maxima(model.layers[0], states)
    assert set(maxima) == {model.layers[0].input_norm.name, model.layers[0].mlp_norm.name}
    x = states.hidden.double()
    norm = model.layers[0].input_norm
    expected = (x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight).abs().max(0).values
    torch.testing.assert_close(maxima[norm.name].double(), expected, rtol=1e-4, atol=1e-5)


def test_a_given_alpha_is_used_and_only_behind_norms() -> None:
    model = stories()
    layer = model.layers[1]
    recipe = replace(W8A8, transforms=("smooth",), smoothing=0.85)
    notes = smooth(layer, first_states(model, calibration(1).segments), recipe)
    assert set(notes.values()) == {"smooth 0.85"}
    assert set(notes) == {linear.name for linear in (layer.q, layer.k, layer.v, layer.mlps[0].gate, layer.mlps[0].up)}
    assert isinstance(layer.input_norm, Norm)


def test_one_token_stays_finite(tmp_path: Path) -> None:
    model = stories()
    recipe = replace(W8A8, scheme="w8a8-static", transforms=("smooth",), smoothing=0.9)
    quantized(model, recipe, one_token_calibration(), tmp_path / "j")
    assert torch.isfinite(logits(model, unseen_tokens(64))).all()


def test_refused_where_no_activation_is_rounded() -> None:
    with pytest.raises(InvalidField, match="rounds none; use awq"):
        plan_quantization(STORIES, Recipe("rtn", 4, None, transforms=("smooth",)))
