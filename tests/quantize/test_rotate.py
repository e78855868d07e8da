"""Rotations: the same model in other coordinates, refused where it would not be, counted where it costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from octavo.api import plan_quantization, quantize
from octavo.core.errors import InvalidField
from octavo.models.load import load_model
from octavo.ops.base import Experts
from octavo.quantize.bulk_ops import dense
from octavo.quantize.recipe import Recipe
from octavo.quantize.rotate import check_rotation, rotate
from tests.checkpoints import FAMILIES, make_tiny
from tests.quantize.transformed import STORIES, calibration, divergence, logits, quantized, stories, unseen_tokens
from tests.quantize.transformed import with_outliers as injected

TOKENS = list(range(3, 250, 4))
ROTATE = Recipe("rtn", 8, 32, transforms=("rotate",))
needs_stories = pytest.mark.skipif(not STORIES.exists(), reason="needs ../shared/data/models/stories260k")


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "gemma3"])
def test_logits_stay(family: str, tmp_path: Path) -> None:
    """96 is 12 x 8: no power of two. Biases, head norms, windows and routers go along."""
    model = load_model(make_tiny(family, tmp_path / "m")).model
    before, layer = logits(model, TOKENS), model.layers[0]
    old_q, old_o = dense(layer.q.weight), dense(layer.o.weight)
    rotate(model, seed=11)
    assert (logits(model, TOKENS) - before).abs().max() < 2e-4
    assert not torch.allclose(dense(layer.q.weight), old_q, atol=0.05)
    assert not torch.allclose(dense(layer.o.weight), old_o, atol=0.05)
    assert torch.equal(layer.input_norm.weight, torch.ones(96))
    assert not model.spec.tied_embedding
    assert model.head.weight is not model.embedding.weight
    if isinstance(layer.mlp, Experts):
        assert torch.equal(model.final_norm.weight, torch.ones(96))


@pytest.mark.parametrize("family", ["llama", "qwen3-moe"])
def test_blocks_of_features_are_rotated_among_themselves(family: str, tmp_path: Path) -> None:
    model = load_model(make_tiny(family, tmp_path / "m")).model
    before, old = logits(model, TOKENS), dense(model.embedding.weight)
    rotate(model, seed=11, block=8)
    assert (logits(model, TOKENS) - before).abs().max() < 2e-4
    new = dense(model.embedding.weight)
    assert not torch.allclose(new, old, atol=0.05)
    energy = [weight.unflatten(1, (-1, 8)).square().sum(-1) for weight in (old, new)]
    assert torch.allclose(*energy, rtol=1e-4), "nothing left its block"


@pytest.mark.parametrize("block", [7, 64])
def test_blocks_that_do_not_fit_are_refused(block: int, tmp_path: Path) -> None:
    """64 divides neither 96 nor the heads; 7 is no Hadamard matrix either."""
    recipe = replace(ROTATE, rotation_block=block)
    with pytest.raises(InvalidField, match=r"rotation_block: got .*a divisor of the hidden size, 96, such as 2, 4, 8"):
        plan_quantization(make_tiny("llama", tmp_path / "m"), recipe)


def test_output_norms_are_refused_with_the_reason(tmp_path: Path) -> None:
    directory = make_tiny("gemma3", tmp_path / "m")
    with pytest.raises(InvalidField, match="no linear behind it to move into"):
        plan_quantization(directory, ROTATE)
    with pytest.raises(InvalidField, match="no linear behind it to move into"):
        plan_quantization(directory, replace(ROTATE, rotation_block=7))  # no block would help
    with pytest.raises(InvalidField, match="gemma3 norms what a half layer adds"):
        rotate(load_model(directory).model, 0)


def test_unknown_sizes_are_refused(tmp_path: Path) -> None:
    spec = load_model(make_tiny("llama", tmp_path / "m")).spec
    with pytest.raises(InvalidField, match="hidden size, 172"):  # would need a table
        check_rotation(replace(spec, hidden_size=172))
    with pytest.raises(InvalidField, match="head size, 6"):
        check_rotation(replace(spec, head_dim=6))


def test_untying_is_shown_before_and_true_afterwards(tmp_path: Path) -> None:
    source = make_tiny("llama-tied", tmp_path / "m")
    plain = plan_quantization(source, replace(ROTATE, transforms=()))
    plan = plan_quantization(source, ROTATE)
    head = next(tensor for tensor in plan.tensors if tensor.name == "lm_head.weight")
    assert plan.output_bytes - plain.output_bytes == pytest.approx(head.output_bytes, rel=0.2)
    assert any("rotating unties lm_head from the embedding" in note for note in plan.notes)
    assert not any("unties" in note for note in plain.notes)
    options = {"method": "rtn", "bits": 8, "group": 32, "transforms": ("rotate",), "measure": None}
    report = quantize(source, tmp_path / "out", **options, say=lambda line: None)
    assert plan.output_bytes == pytest.approx(report.output_bytes, rel=0.03)
    written = load_model(tmp_path / "out").model
    assert not written.spec.tied_embedding
    expected = logits(load_model(source).model, TOKENS)
    assert divergence(expected, logits(written, TOKENS)) < 0.01, "the file computes what the source did, in 8 bits"


def test_kept_matrices_are_written_rotated(tmp_path: Path) -> None:
    """Embedding and head in full precision, router and norms too: whatever is not quantized changes all the same."""
    source = make_tiny("qwen3-moe", tmp_path / "m")
    options = {"method": "rtn", "scheme": "fp8-weights", "transforms": ("rotate",), "embedding_bits": 16}
    quantize(source, tmp_path / "out", **options, measure=None, say=lambda line: None)
    written, expected = load_model(tmp_path / "out").model, logits(load_model(source).model, TOKENS)
    assert isinstance(written.embedding.weight, torch.Tensor)
    assert divergence(expected, logits(written, TOKENS)) < 0.05


@needs_stories
def test_outliers_are_spread(tmp_path: Path) -> None:
    """What AWQ has to find, a rotation undoes: gains fold away, and the rest is even."""
    tokens = unseen_tokens(192)
    expected = logits(stories(), tokens)
    losses = {}
    for transforms in ((), ("rotate",)):
        model = injected(stories())
        recipe = Recipe("rtn", 4, None, embedding_bits=16, search=False, transforms=transforms)
        quantized(model, recipe, None, tmp_path / f"j{len(transforms)}")
        losses[transforms] = divergence(expected, logits(model, tokens))
    assert losses[("rotate",)] < 0.5 * losses[()]


class Stopped(Exception):
    pass


@needs_stories
def test_an_interrupted_run_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    """Everything at once: the model is rotated again from the seed, finished blocks come back with their norms and
    KV scales, and the rest continues from the journal's states."""
    from octavo.quantize.journal import Journal
    from octavo.quantize.pipeline import quantize_model

    text, tokens = calibration(2, 64), unseen_tokens(64)
    recipe = Recipe("gptq", 4, None, search=False, transforms=("rotate", "awq"), kv_cache="int8", seed=3)
    whole_model, stopped_model, resumed_model = stories(), stories(), stories()
    whole = quantized(whole_model, recipe, text, tmp_path / "whole")

    def stop(done: int, total: int) -> None:
        if done == 3:
            raise Stopped

    with pytest.raises(Stopped):
        quantize_model(stopped_model, recipe, text, Journal(tmp_path / "j", {}), stop)
    resumed = quantized(resumed_model, recipe, text, tmp_path / "j")
    assert resumed.num_resumed_blocks == 3
    assert resumed.kv_scales == whole.kv_scales
    assert [report.to_dict() for report in resumed.reports] == [report.to_dict() for report in whole.reports]
    assert resumed.tensors.keys() == whole.tensors.keys()
    for name, tensor in whole.tensors.items():
        assert torch.equal(dense(tensor), dense(resumed.tensors[name])), name
    assert torch.equal(logits(resumed_model, tokens), logits(whole_model, tokens))
    assert resumed_model.layers[1].attention.kv_scales == whole.kv_scales[1]
