"""Calibrated scales of the KV cache, and keys made even: right, defined where nothing is seen, and worth it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from octavo.api import quantize
from octavo.core.errors import InvalidField
from octavo.models.decoder import DecoderLayer, DecoderModel, attention_half
from octavo.models.load import load_model
from octavo.numerics.kv_scales import KvScales
from octavo.ops.base import Attention
from octavo.ops.reference.batch import whole_prompts
from octavo.quantize.block_states import BlockStates
from octavo.quantize.bulk_ops import BulkOps, dense
from octavo.quantize.kv_calibration import calibrate_kv, equalize_keys
from octavo.quantize.recipe import Recipe
from tests.checkpoints import FAMILIES, make_tiny
from tests.quantize.transformed import (
    STORIES,
    TEXT,
    calibration,
    first_states,
    logits,
    one_token_calibration,
    quantized,
    stories,
)

TOKENS = list(range(3, 200, 3))
INT8_CACHE = Recipe("rtn", 8, None, embedding_bits=16, search=False, kv_cache="int8")
needs_stories = pytest.mark.skipif(not STORIES.exists(), reason="needs ../shared/data/models/stories260k")


class CacheOps(BulkOps):
    """Keeps what each layer would cache; with `scales`, rounds it to int8 as a cache would."""

    def __init__(self, scales: KvScales | None = None) -> None:
        super().__init__()
        self.scales = scales
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}

    def attend(self, q: Tensor, k: Tensor, v: Tensor, attention: Attention, batch: Any) -> Tensor:
        self.keys[attention.layer] = k.view(len(k), -1, attention.head_dim)
        self.values[attention.layer] = v.view(len(v), -1, attention.head_dim)
        if self.scales is not None:
            step = torch.tensor(self.scales.keys)[:, None]
            rounded = (self.keys[attention.layer] / step).round().clamp(-127, 127) * step
            k = rounded.view(k.shape)
        return super().attend(q, k, v, attention, batch)


@needs_stories
@pytest.mark.parametrize(("format", "largest"), [("int8", 127.0), ("fp8", 448.0)])
def test_scales_are_the_largest_magnitudes_of_the_quantized_model(format: str, largest: float, tmp_path: Path) -> None:
    text, model = calibration(2), stories()
    result = quantized(model, replace(INT8_CACHE, bits=4, kv_cache=format), text, tmp_path / "j")
    ops = CacheOps()
    model.forward(ops, whole_prompts(text.segments))
    assert set(result.kv_scales) == set(range(5))
    for layer, scales in result.kv_scales.items():
        assert scales.format == format
        for found, seen in ((scales.keys, ops.keys[layer]), (scales.values, ops.values[layer])):
            expected = seen.abs().amax((0, 2)) / largest
            torch.testing.assert_close(torch.tensor(found), expected, rtol=1e-3, atol=0)
        assert model.layers[layer].attention.kv_scales == scales


@needs_stories
def test_scales_are_in_the_file(tmp_path: Path) -> None:
    quantize(
        STORIES, tmp_path / "out", method="rtn", bits=8, group=None, kv_cache="fp8", calibration=TEXT, samples=2,
        sequence_length=64, measure=None, say=lambda line: None,
    )  # fmt: skip
    for layer in load_model(tmp_path / "out").model.layers:
        assert layer.attention.kv_scales is not None
        assert layer.attention.kv_scales.format == "fp8"
        assert len(layer.attention.kv_scales.keys) == layer.attention.num_kv_heads
        assert 1.0 not in layer.attention.kv_scales.keys


@pytest.mark.parametrize("family", FAMILIES)
def test_equalized_keys_change_nothing(family: str, tmp_path: Path) -> None:
    """With grouped heads, biases, and head norms (one factor for all heads then)."""
    model = load_model(make_tiny(family, tmp_path / "m")).model
    before, states = logits(model, TOKENS), first_states(model, [TOKENS])
    for layer in model.layers:
        _outlier_key(layer)
    layer = model.layers[0]
    old_keys, told = _keys(model, states), equalize_keys(layer, states, "int8")
    assert "key channels equalized" in told, told
    assert (logits(model, TOKENS) - before).abs().max() < 3e-4
    assert not torch.allclose(_keys(model, states), old_keys, rtol=0.05)


def _outlier_key(layer: DecoderLayer, factor: float = 60.0) -> None:
    """One rotated pair of key channels grows and the queries' shrinks: scores stay. (Head norms: in their gains.)"""
    head_dim = layer.attention.head_dim
    scale = torch.ones(head_dim)
    scale[[3, 3 + head_dim // 2]] = factor
    if layer.q_norm is not None and layer.k_norm is not None:
        layer.replace_norm(replace(layer.q_norm, weight=layer.q_norm.weight / scale))
        layer.replace_norm(replace(layer.k_norm, weight=layer.k_norm.weight * scale))
        return
    for linear, factors in ((layer.q, 1 / scale), (layer.k, scale)):
        rows = factors.repeat(linear.num_outputs // head_dim)
        bias = None if linear.bias is None else linear.bias * rows
        layer.replace_linear(replace(linear, weight=dense(linear.weight) * rows[:, None], bias=bias))


def _keys(model: DecoderModel, states: BlockStates) -> Tensor:
    ops, layer = CacheOps(), model.layers[0]
    attention_half(ops, layer, ops.norm(states.hidden, layer.input_norm), states.batch)
    return ops.keys[0]


@needs_stories
def test_int8_scores_are_far_better_with_even_keys() -> None:
    model = stories()
    layer, states = model.layers[2], first_states(model, calibration(2).segments)
    _outlier_key(layer)
    x = BulkOps().norm(states.hidden, layer.input_norm)
    expected = attention_half(BulkOps(), layer, x, states.batch)
    errors = []
    for equalize in (False, True):
        if equalize:
            assert "less error" in equalize_keys(layer, states, "int8")
        scales = calibrate_kv(layer, states.hidden, states.batch, "int8")
        errors.append(float((attention_half(CacheOps(scales), layer, x, states.batch) - expected).square().mean()))
    assert errors[1] < 0.1 * errors[0]


@needs_stories
def test_fp8_keys_stay_and_the_reason_is_given() -> None:
    model = stories()
    weight = model.layers[0].k.weight
    told = equalize_keys(model.layers[0], first_states(model, [[5, 6, 7]]), "fp8")
    assert "keys as they are" in told
    assert model.layers[0].k.weight is weight


@needs_stories
def test_dead_heads_and_one_token_have_scales(tmp_path: Path) -> None:
    """A head of zeros gets its layer's largest scale; a layer of zeros gets 1; never 0."""
    model = stories()
    first, second = model.layers[0], model.layers[1]
    head_dim = first.attention.head_dim
    silent = dense(first.v.weight).clone()
    silent[:head_dim] = 0
    first.replace_linear(replace(first.v, weight=silent))
    second.replace_linear(replace(second.v, weight=torch.zeros_like(silent)))
    result = quantized(model, INT8_CACHE, one_token_calibration(), tmp_path / "j")
    assert result.kv_scales[0].values[0] == max(result.kv_scales[0].values[1:])
    assert set(result.kv_scales[1].values) == {1.0}
    assert all(scale > 0 for scales in result.kv_scales.values() for scale in (*scales.keys, *scales.values))
    assert torch.isfinite(logits(model, [1, 5, 9])).all()


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_wrong_scales_are_an_error(bad: float) -> None:
    with pytest.raises(InvalidField, match="calibrate again"):
        KvScales("int8", (0.1, bad), (0.1, 0.1))
    with pytest.raises(InvalidField, match="v_scale"):
        KvScales("fp8", (0.1,), ())
