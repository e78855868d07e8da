"""Sign-gradient rounding and fake quantization: exact against what is stored, and better than what they start from."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from octavo.numerics.integer import choose_grid, round_to_grid
from octavo.numerics.packed_tensor import PackedTensor
from octavo.numerics.scheme import IntegerScheme
from octavo.quantize.fake_quantize import LatentWeight, TrainedWeight, on_grid
from octavo.quantize.sign_rounding import RoundingOffsets
from octavo.quantize.updates import Updates
from tests.quantize import trained

SCHEMES = [
    IntegerScheme(bits, group, symmetric) for bits in (2, 4) for group in (16, None) for symmetric in (True, False)
]


def _start(scheme: IntegerScheme) -> tuple[PackedTensor, Tensor]:
    weight = torch.randn(12, 48, generator=torch.Generator().manual_seed(1)) * 0.1
    grid = choose_grid(weight, scheme)
    return PackedTensor.from_codes(round_to_grid(weight, grid, scheme), grid.scale, grid.zero_point, scheme), weight


@pytest.mark.parametrize("kind", [RoundingOffsets, LatentWeight])
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_what_is_trained_is_what_is_stored(kind: type[TrainedWeight], scheme: IntegerScheme) -> None:
    """At the start both are the start; after updates that push far in random directions they still agree, exactly."""
    start, weight = _start(scheme)
    trained_weight = kind(start, weight)  # type: ignore[call-arg]
    assert torch.equal(trained_weight.packed().dequantize(), start.dequantize())
    travel = {"units": 0.7, "scale": 0.2, "zero": 0.7, "offset": 0.3, "clip": 0.2}
    updates = Updates([trained_weight], travel, 1, lambda done: 1.0)
    for step in range(4):
        noise = torch.randn(12, 48, generator=torch.Generator().manual_seed(step))
        (trained_weight.weight() * noise).sum().backward()
        updates.step(0)
        packed = trained_weight.packed()
        assert torch.equal(trained_weight.weight().detach(), packed.dequantize())
        assert packed.scheme == scheme
        assert packed.scale.dtype == torch.float16
    assert not torch.equal(packed.dequantize(), start.dequantize())


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_another_training_can_start_from_what_one_left(scheme: IntegerScheme) -> None:
    start, weight = _start(scheme)
    first = RoundingOffsets(start, weight)
    updates = Updates([first], {"offset": 0.3, "clip": 0.05}, 1, lambda done: 1.0)
    (first.weight() * weight).sum().backward()
    updates.step(0)
    second = LatentWeight(first.packed(), first.latent().to(torch.float16).to(torch.float32))
    assert torch.equal(second.weight().detach(), first.packed().dequantize())
    torch.testing.assert_close(second.latent(), first.latent(), rtol=2e-3, atol=2e-3)


def test_offsets_move_a_weight_by_one_code_at_most() -> None:
    start, weight = _start(IntegerScheme(4, 16, True))
    offsets = RoundingOffsets(start, weight)
    updates = Updates([offsets], {"offset": 5.0, "clip": 0.0}, 1, lambda done: 1.0)
    (offsets.weight() * torch.randn(12, 48, generator=torch.Generator().manual_seed(3))).sum().backward()
    updates.step(0)
    moved = (offsets.packed().codes() - start.codes()).abs()
    assert int(moved.max()) == 1
    assert torch.equal(offsets.packed().scale, start.scale)


@pytest.mark.parametrize("with_zero", [True, False])
def test_gradients_are_those_of_straight_through(with_zero: bool) -> None:
    """Against autograd with round replaced by x + (round(x) - x).detach()."""
    generator = torch.Generator().manual_seed(5)
    units, scale, noise = (torch.randn(shape, generator=generator) for shape in ((6, 3, 8), (6, 3), (6, 3, 8)))
    zero = torch.randint(-2, 2, (6, 3), generator=generator).float() if with_zero else None
    ours = [tensor.clone().requires_grad_() for tensor in (units, scale, *([zero] if with_zero else []))]
    theirs = [tensor.detach().clone().requires_grad_() for tensor in ours]
    (on_grid(ours[0], ours[1], ours[2] if with_zero else None, (-4, 3)) * noise).sum().backward()
    rounded = theirs[0] + (theirs[0].detach().round().clamp(-4, 3) - theirs[0].detach())
    shifted = rounded - theirs[2].unsqueeze(-1) if with_zero else rounded
    (shifted * theirs[1].unsqueeze(-1) * noise).sum().backward()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad)


@trained.needs_model
@pytest.mark.parametrize("bits", [2, 3])
def test_better_than_gptq_on_other_text(bits: int) -> None:
    assert float(trained.block_errors(method="signround", bits=bits)[-1]) < float(
        trained.block_errors(method="gptq", bits=bits)[-1]
    )
    assert trained.perplexity(method="signround", bits=bits) < trained.perplexity(method="gptq", bits=bits)
    assert trained.divergence(method="signround", bits=bits) < 0.9 * trained.divergence(method="gptq", bits=bits)
    _, result = trained.quantized(method="signround", bits=bits)
    for report in result.reports:
        assert report.method == "signround"
        assert report.block_error is not None
        assert report.block_error_before is not None
        assert report.block_error <= report.block_error_before
