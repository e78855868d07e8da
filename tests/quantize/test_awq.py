"""AWQ: wins where channels carry much, changes nothing by itself, and stays finite where there is nothing to see."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from octavo.models.load import load_model
from octavo.ops.base import Experts
from octavo.quantize.awq import NUM_EXPONENTS, awq, candidates
from octavo.quantize.bulk_ops import dense
from octavo.quantize.pair_trial import PairTrial, capture_inputs, sample_states
from octavo.quantize.pairs import norm_pairs
from octavo.quantize.recipe import Recipe
from tests.checkpoints import make_tiny
from tests.quantize.test_quantized_experts import starve_the_last
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

needs_stories = pytest.mark.skipif(not STORIES.exists(), reason="needs ../shared/data/models/stories260k")
FOUR_BITS = Recipe("rtn", 4, None, embedding_bits=16, search=False)


@needs_stories
def test_outlier_channels_survive_four_bits(tmp_path: Path) -> None:
    """Inputs a thousand times as large meet weights a thousand times as small, which RTN rounds to zero."""
    text, tokens = calibration(4), unseen_tokens(192)
    expected = logits(stories(), tokens)
    losses = {}
    for transforms in ((), ("awq",)):
        model = with_outliers(stories())
        quantized(model, replace(FOUR_BITS, transforms=transforms), text, tmp_path / f"j{len(transforms)}")
        losses[transforms] = divergence(expected, logits(model, tokens))
    assert losses[("awq",)] < 0.5 * losses[()]
    assert losses[("awq",)] < 0.35


@needs_stories
def test_the_chosen_scale_is_the_best_of_the_grid_and_written_down() -> None:
    """The pair's loss with the reported exponent is the least of all, and less than identity's."""
    model = stories()
    states = first_states(model, calibration(2).segments)
    sample, layer = sample_states(states), model.layers[0]
    pair = next(norm_pairs(layer))
    trial = PairTrial(layer, pair, capture_inputs(layer, sample)[pair.reader], sample, FOUR_BITS)
    losses = {each.label: trial.loss(each.scale, False) for each in candidates(trial.counted)}
    assert len(losses) == NUM_EXPONENTS
    best = min(losses, key=losses.__getitem__)
    assert losses[best] < losses["identity"]
    notes = awq(layer, states, replace(FOUR_BITS, transforms=("awq",)))
    assert notes[layer.q.name] == notes[layer.k.name] == notes[layer.v.name] == f"awq {best}"
    assert layer.o.name not in notes, "o has no pair under GQA"


@needs_stories
@pytest.mark.parametrize("method", ["rtn", "gptq"])
def test_one_token_is_enough_to_stay_finite(method: str, tmp_path: Path) -> None:
    model = stories()
    recipe = replace(FOUR_BITS, method=method, transforms=("awq",))
    result = quantized(model, recipe, one_token_calibration(), tmp_path / "j")
    assert torch.isfinite(logits(model, unseen_tokens(64))).all()
    assert all(report.num_tokens <= 1 for report in result.reports)


def test_channels_that_never_fire() -> None:
    """They are scaled like the weakest one that does; where nothing fires there is nothing to choose from."""
    x = torch.rand(50, 16) + 0.1
    x[:, [2, 9]] = 0
    for candidate in candidates(x):
        assert candidate.scale is None or bool((torch.isfinite(candidate.scale) & (candidate.scale > 0)).all())
        if candidate.scale is not None:
            assert candidate.scale[2] == candidate.scale[9] == candidate.scale.min()
    assert [candidate.label for candidate in candidates(torch.zeros(4, 8))] == ["identity"]


def test_signs_do_not_cancel_and_large_inputs_do_not_overflow() -> None:
    """Users' case 15: a signed mean is zero or negative, and float16 sums overflow: all ratios become NaN."""
    x = torch.tensor([[60000.0, -1.0, 0.5], [-60000.0, 1.0, -0.5]]).repeat(5000, 1).to(torch.float16)
    scales = [candidate.scale for candidate in candidates(x) if candidate.scale is not None]
    assert len(scales) == NUM_EXPONENTS - 1
    for scale in scales:
        assert torch.isfinite(scale).all()
        assert scale[0] > scale[1] > scale[2] > 0


def test_no_finite_loss_keeps_identity_and_says_so(tmp_path: Path) -> None:
    """Weights whose outputs overflow: every candidate's error is infinite or NaN."""
    model = load_model(make_tiny("llama", tmp_path / "m")).model
    layer = model.layers[0]
    layer.replace_linear(replace(layer.o, weight=dense(layer.o.weight) * 1e38))
    norm = layer.input_norm.weight.clone()
    notes = awq(layer, first_states(model, [[3, 4, 5, 6]]), replace(FOUR_BITS, group=32, transforms=("awq",)))
    assert "no candidate's error is finite, identity kept" in notes[layer.q.name]
    assert torch.equal(layer.input_norm.weight, norm)


def test_starved_experts_are_scaled_on_all_tokens(tmp_path: Path) -> None:
    """Users' case 13: an expert that no token chose gets a scale from what its layer computes, and no NaN."""
    directory = make_tiny("mixtral", tmp_path / "m", num_hidden_layers=1)
    starve_the_last(directory)
    model = load_model(directory).model
    states, layer = first_states(model, [list(range(3, 120))]), model.layers[0]
    assert isinstance(layer.mlp, Experts)
    seen = capture_inputs(layer, sample_states(states))
    assert len(seen[layer.mlps[4].down.name]) == 117
    assert 0 < len(seen[layer.mlps[0].down.name]) < 117
    expected = logits(model, list(range(3, 90)))
    notes = awq(layer, states, replace(FOUR_BITS, group=32, transforms=("awq",)))
    assert notes[layer.mlps[4].down.name].startswith("awq ")
    assert (logits(model, list(range(3, 90))) - expected).abs().max() < 1e-4


def test_only_tokens_that_count_are_looked_at(tmp_path: Path) -> None:
    """Context (a chat's user turns) is read by attention and has no say in scales or losses."""
    model = load_model(make_tiny("llama", tmp_path / "m")).model
    states, layer = first_states(model, [list(range(3, 63)), list(range(70, 100))]), model.layers[0]
    states.mask = torch.arange(90) % 3 == 0
    sample = sample_states(states)
    inputs = capture_inputs(layer, sample)
    assert sample.mask is not None
    assert len(inputs[layer.mlps[0].down.name]) == int(sample.mask.sum()) == 30
    _, pair = norm_pairs(layer)
    x = inputs[pair.reader]
    loud = torch.where(states.mask[:, None], x, 50 * x)
    losses = [PairTrial(layer, pair, each, sample, FOUR_BITS).loss(None, False) for each in (x, loud)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0] > 0
