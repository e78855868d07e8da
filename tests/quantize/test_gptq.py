"""GPTQ against a naive float64 one, against RTN, and with little or degenerate calibration (bug Q3)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from octavo.core.errors import OctavoError
from octavo.numerics.integer import Grid, choose_grid
from octavo.numerics.scheme import IntegerScheme
from octavo.quantize.gptq import gptq, invert
from octavo.quantize.result import relative_error
from octavo.quantize.rtn import rtn
from octavo.quantize.statistics import InputStatistics


def _inputs(num_tokens: int, width: int, seed: int = 0) -> Tensor:
    """Correlated inputs with a few outlier channels, as trained models have them."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(width, width, generator=torch.Generator().manual_seed(99)) / width**0.5
    x = torch.randn(num_tokens, width, generator=generator) @ mix + 0.3
    x[:, 3] *= 30
    x[:, width // 2] *= 12
    return x


def _statistics(x: Tensor) -> InputStatistics:
    statistics = InputStatistics(x.shape[1])
    statistics.add(x)
    return statistics


def _weight(rows: int, columns: int, seed: int = 7) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * 0.05


def _naive_gptq(
    weight: Tensor, hessian: Tensor, order: Tensor, grid: Grid, damping: float, scheme: IntegerScheme
) -> Tensor:
    """Optimal brain quantization in the given order, float64: after each column the rest moves to the least-squares
    optimum, by the inverse of the remaining Hessian computed afresh. Returns codes."""
    weight, hessian = weight.double().clone(), hessian.double()
    hessian = hessian + damping * hessian.diagonal().mean() * torch.eye(len(hessian), dtype=torch.float64)
    size = weight.shape[1] // grid.scale.shape[1]
    codes = torch.zeros_like(weight)
    remaining = order.tolist()
    while remaining:
        column = remaining[0]
        scale = grid.scale[:, column // size].double()
        zero = 0.0 if grid.zero_point is None else grid.zero_point[:, column // size].double()
        codes[:, column] = (weight[:, column] / scale + zero).round().clamp(scheme.lowest, scheme.highest)
        error = weight[:, column] - (codes[:, column] - zero) * scale
        inverse = torch.linalg.inv(hessian[remaining][:, remaining])
        weight[:, remaining] -= error[:, None] * inverse[0] / inverse[0, 0]
        remaining = remaining[1:]
    return codes


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("act_order", [True, False])
def test_equals_a_naive_float64_implementation(symmetric: bool, act_order: bool) -> None:
    """160 columns: more than one block of 128. A code may differ only where float32 moved a value across a tie."""
    weight, statistics = _weight(24, 160), _statistics(_inputs(2000, 160))
    scheme = IntegerScheme(4, 32, symmetric)
    inverse = invert(statistics.hessian, 0.01, act_order)
    expected_order = statistics.hessian.diagonal().argsort(descending=True) if act_order else torch.arange(160)
    assert torch.equal(inverse.order, expected_order)
    result = gptq("m", weight, statistics, inverse, scheme)
    grid = choose_grid(weight, scheme, importance=statistics.hessian.diagonal())
    assert torch.equal(result.packed.scale, grid.scale)
    expected = _naive_gptq(weight, statistics.hessian, inverse.order, grid, 0.01, scheme)
    differing = (result.packed.codes().double() != expected).any(1)
    assert int(differing.sum()) <= 1


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group", [64, None])
def test_beats_rtn_in_the_hessian_norm(bits: int, symmetric: bool, group: int | None) -> None:
    weight, statistics = _weight(96, 192), _statistics(_inputs(3000, 192))
    scheme = IntegerScheme(bits, group, symmetric)
    ours = gptq("m", weight, statistics, invert(statistics.hessian), scheme)
    plain = relative_error(weight, rtn("m", weight, scheme).packed.dequantize(), statistics.hessian)
    assert ours.report.error < 0.8 * plain
    assert ours.report.error < 0.9 * ours.report.rtn_error
    again = relative_error(weight, ours.packed.dequantize(), statistics.hessian)
    assert ours.report.error == pytest.approx(again, rel=1e-4)


def test_error_on_outputs_of_unseen_inputs_falls_too() -> None:
    weight, statistics = _weight(96, 192), _statistics(_inputs(3000, 192))
    scheme = IntegerScheme(3, 64)
    ours = gptq("m", weight, statistics, invert(statistics.hessian), scheme).packed.dequantize()
    plain = rtn("m", weight, scheme).packed.dequantize()
    unseen = _inputs(500, 192, seed=1)
    errors = [((unseen @ (value - weight).T) ** 2).mean() for value in (ours, plain)]
    assert errors[0] < 0.8 * errors[1]


def test_few_tokens_stay_finite_and_are_counted() -> None:
    """Q3: 8 tokens for 192 inputs: the Hessian has rank 8, damping makes it invertible and is recorded."""
    weight, statistics = _weight(32, 192), _statistics(_inputs(8, 192))
    result = gptq("m", weight, statistics, invert(statistics.hessian), IntegerScheme(4, 64))
    assert torch.isfinite(result.packed.dequantize()).all()
    assert result.report.num_tokens == 8
    assert result.report.fallback is None
    assert result.report.damping is not None
    assert result.report.damping >= 0.01
    assert result.report.error <= result.report.rtn_error


def test_damping_is_stepped_up_and_recorded() -> None:
    """A matrix that is not positive definite at 0.01 of its diagonal, but is at more."""
    hessian = torch.eye(32)
    hessian[0, 1] = hessian[1, 0] = 1.05
    inverse = invert(hessian)
    assert inverse.upper is not None
    assert inverse.damping == pytest.approx(0.1)


def test_last_resort_is_rtn_and_says_so() -> None:
    statistics = InputStatistics(32)
    statistics.hessian.copy_(torch.eye(32))
    statistics.hessian[0, 1] = statistics.hessian[1, 0] = 50.0
    statistics.num_tokens = 5
    inverse = invert(statistics.hessian)
    assert inverse.upper is None
    result = gptq("layer.7.down", _weight(8, 32), statistics, inverse, IntegerScheme(4, 32))
    assert result.report.method == "rtn"
    assert "not positive definite" in str(result.report.fallback)
    assert torch.isfinite(result.packed.dequantize()).all()


def test_dead_inputs_are_counted_and_get_zero_weights() -> None:
    x = _inputs(600, 64)
    x[:, [5, 40]] = 0
    statistics = _statistics(x)
    weight = _weight(16, 64)
    result = gptq("m", weight, statistics, invert(statistics.hessian), IntegerScheme(4, 32))
    value = result.packed.dequantize()
    assert result.report.num_dead_inputs == 2
    assert not value[:, [5, 40]].any()
    assert value[:, [4, 6, 39]].any()
    assert torch.isfinite(value).all()


def test_all_inputs_dead_still_gives_finite_weights() -> None:
    statistics = _statistics(torch.zeros(50, 32))
    result = gptq("m", _weight(8, 32), statistics, invert(statistics.hessian), IntegerScheme(4, 32))
    assert result.report.num_dead_inputs == 32
    assert not result.packed.dequantize().any()


def test_samples_count_by_token_in_any_order() -> None:
    """Q3: ten samples of different lengths, the same reversed, and one dropped."""
    samples = [_inputs(length, 48, seed=length) for length in (3, 200, 17, 64, 1, 90, 5, 41, 8, 120)]
    forward, backward, fewer = InputStatistics(48), InputStatistics(48), InputStatistics(48)
    for sample in samples:
        forward.add(sample)
    for sample in reversed(samples):
        backward.add(sample)
    for sample in samples[:1] + samples[2:]:
        fewer.add(sample)
    whole = torch.cat(samples).double()
    exact = (whole.T @ whole / len(whole)).float()
    scale = exact.abs().max()
    assert forward.num_tokens == backward.num_tokens == len(whole)
    assert (forward.hessian - exact).abs().max() < 1e-5 * scale
    assert (forward.hessian - backward.hessian).abs().max() < 1e-5 * scale
    assert (forward.hessian - fewer.hessian).abs().max() > 1e-2 * scale


def test_masked_padding_counts_nowhere() -> None:
    x = _inputs(100, 32)
    padded = torch.cat([x, torch.full((28, 32), 1e4)])
    masked = InputStatistics(32)
    masked.add(padded, torch.arange(128) < 100)
    assert masked.num_tokens == 100
    assert torch.equal(masked.hessian, _statistics(x).hessian)


def test_infinite_inputs_are_refused_by_name() -> None:
    x = _inputs(10, 32)
    x[4, 4] = float("inf")
    with pytest.raises(OctavoError, match=r"layers\.3\.q"):
        _statistics(x).check_finite("layers.3.q")


def test_zero_groups_survive_error_feedback() -> None:
    """A zero group may move off zero to absorb error of others, but only to finite values on its own grid."""
    weight = _weight(8, 64)
    weight[2] = 0
    statistics = _statistics(_inputs(300, 64))
    result = gptq("m", weight, statistics, invert(statistics.hessian), IntegerScheme(4, 32))
    assert torch.isfinite(result.packed.dequantize()).all()
    assert not result.packed.dequantize()[2].any()
