"""Ternary weights: the absmean rule, one scale for a matrix at every moment, and trained or not at all."""

from __future__ import annotations

import pytest
import torch

from octavo.core.errors import InvalidField
from octavo.numerics.activations import ActivationFormat
from octavo.numerics.packed_tensor import PackedTensor
from octavo.quantize.fake_quantize import LatentWeight
from octavo.quantize.recipe import Recipe
from octavo.quantize.statistics import InputStatistics
from octavo.quantize.ternary import TERNARY, ternarize
from octavo.quantize.updates import Updates
from tests.quantize import trained


def test_the_absmean_rule() -> None:
    weight = torch.randn(8, 32, generator=torch.Generator().manual_seed(0))
    statistics = InputStatistics(32)
    statistics.add(torch.randn(64, 32, generator=torch.Generator().manual_seed(1)))
    packed = ternarize("m", weight, statistics, torch.float16).packed
    assert isinstance(packed, PackedTensor)
    mean = weight.abs().mean().to(torch.float16)
    assert bool((packed.scale == mean).all())
    assert torch.equal(packed.codes(), (weight / mean.float()).round().clamp(-1, 1).to(torch.int8))


def test_a_trained_matrix_keeps_one_scale_and_the_ramp_begins_at_the_source() -> None:
    weight = torch.randn(8, 32, generator=torch.Generator().manual_seed(0))
    statistics = InputStatistics(32)
    statistics.add(torch.ones(4, 32))
    started = ternarize("m", weight, statistics, torch.float16)
    assert isinstance(started.packed, PackedTensor)
    assert started.latent is not None
    latent = LatentWeight(started.packed, started.latent)
    latent.rounded_share = 0.0
    torch.testing.assert_close(latent.weight().detach(), weight)
    latent.rounded_share = 1.0
    updates = Updates([latent], {"units": 0.3, "scale": 0.1}, 1, lambda done: 1.0)
    (latent.weight() * weight.flip(0)).sum().backward()
    updates.step(0)
    packed = latent.packed()
    assert packed.scheme == TERNARY
    assert len(packed.scale.unique()) == 1
    assert packed.scale.shape == (8, 1)
    assert torch.equal(packed.dequantize(), latent.weight().detach())
    assert not torch.equal(packed.dequantize(), started.packed.dequantize())


@pytest.mark.parametrize("method", ["rtn", "gptq", "signround"])
def test_rounding_to_ternary_is_refused_with_the_reason(method: str) -> None:
    with pytest.raises(InvalidField, match="destroys it; ternary weights must be trained"):
        Recipe(scheme="ternary", method=method)


@trained.needs_model
def test_training_is_far_better_than_rounding() -> None:
    """No steps: the absmean codes as they are."""
    rounded = trained.divergence(method="qat", scheme="ternary", steps=0)
    blocks = trained.divergence(method="qat", scheme="ternary")
    whole = trained.divergence(method="qat", scheme="ternary", distill_steps=12, train="all")
    assert blocks < 0.7 * rounded
    assert whole < blocks
    _, result = trained.quantized(method="qat", scheme="ternary", distill_steps=12, train="all")
    for name, inputs in result.inputs.items():
        assert inputs.scheme.format is ActivationFormat.INT8
        assert inputs.scheme.dynamic
        packed = result.tensors[f"{name}.weight"]
        assert isinstance(packed, PackedTensor)
        assert packed.scheme == TERNARY
        assert len(packed.scale.unique()) == 1
