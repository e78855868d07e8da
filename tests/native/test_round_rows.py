"""Rounding rows as a scheme asks for it: FP8 against torch, int8 with a scale of the row or a calibrated one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from octavo.numerics.activations import ActivationFormat, ActivationScheme, InputQuantizer
from octavo.ops.native import _kernels
from tests.native.test_quantize_activations import RUNNABLE, rows_for

FP8_DYNAMIC = InputQuantizer(ActivationScheme(ActivationFormat.E4M3))


def static(format: ActivationFormat, scale: float) -> InputQuantizer:
    return InputQuantizer(ActivationScheme(format, dynamic=False), torch.tensor([scale]))


def rounded(x: torch.Tensor, scale: float, unit: str) -> torch.Tensor:
    result = x.clone()
    _kernels.round_e4m3(result.numpy(), scale, unit)
    return result


@pytest.mark.parametrize("unit", RUNNABLE)
@pytest.mark.parametrize("features", [1, 16, 172])
def test_fp8_rows_are_torchs(features: int, unit: str) -> None:
    """Numbers of many sizes: normal, subnormal and clamped ones."""
    generator = torch.Generator().manual_seed(features)
    x = torch.randn(50, features, generator=generator) * torch.logspace(-6, 3, 50)[:, None]
    x *= 10 ** (3 * torch.rand(x.shape, generator=generator) - 3)
    assert torch.equal(rounded(x, 0.0, unit), FP8_DYNAMIC.round(x))
    for scale in (1.0, 0.003, 0.37):
        assert torch.equal(rounded(x, scale, unit), static(ActivationFormat.E4M3, scale).round(x))


@pytest.mark.parametrize("unit", RUNNABLE)
def test_ties_between_fp8_numbers_go_to_the_even_one(unit: str) -> None:
    """The middle of every two neighbours, and what lies a bit to its sides."""
    grid = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    middle = (grid[1:] + grid[:-1]) / 2
    x = torch.cat([middle, middle.nextafter(torch.tensor(0.0)), middle.nextafter(torch.tensor(999.0)), -middle])[None]
    assert torch.equal(rounded(x, 1.0, unit), x.to(torch.float8_e4m3fn).float())


@pytest.mark.parametrize("unit", RUNNABLE)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("scale", [0.0, 0.5])
def test_fp8_rows_that_are_not_finite_become_nan_and_zeros_stay(unit: str, bad: float, scale: float) -> None:
    x = torch.ones(3, 20)
    x[1, 7], x[2] = bad, 0
    y = rounded(x, scale, unit)
    assert torch.equal(y[0], x[0])
    assert y[1].isnan().all()
    assert torch.equal(y[2], x[2])


@pytest.mark.parametrize("unit", RUNNABLE)
@pytest.mark.parametrize(("features", "group"), [(172, 32), (100, 100), (576, 576), (64, 16)])
def test_int8_rows_with_one_scale(features: int, group: int, unit: str) -> None:
    x = np.random.default_rng(features).standard_normal((5, features)).astype(np.float32)
    padded, groups = -(-features // 64) * 64, -(-features // group)
    absmax = np.abs(x).max(1, keepdims=True)
    dynamic = np.rint(x * (np.float32(127) / absmax)), np.repeat(absmax / np.float32(127), groups, 1)
    fixed = np.clip(np.rint(x / np.float32(0.01)), -127, 127), np.full((5, groups), 0.01, np.float32)
    for (expected, expected_scales), options in ((dynamic, {"whole_row": True}), (fixed, {"fixed_scale": 0.01})):
        codes, scales, sums = rows_for(5, padded, groups)
        _kernels.quantize_rows(x, codes, scales, sums, group, unit=unit, **options)
        np.testing.assert_array_equal(codes[:, :features], expected)
        assert not codes[:, features:].any()
        np.testing.assert_array_equal(scales, expected_scales)
        starts = range(0, features, group)
        np.testing.assert_array_equal(sums, np.stack([expected[:, s : s + group].sum(1) for s in starts], 1))


@pytest.mark.parametrize("unit", RUNNABLE)
def test_int8_rows_with_a_calibrated_scale_are_the_references(unit: str) -> None:
    x = torch.randn(6, 96)
    codes, scales, sums = rows_for(6, 128, 1)
    _kernels.quantize_rows(x, codes, scales, sums, 96, unit=unit, fixed_scale=0.013)
    reference = static(ActivationFormat.INT8, 0.013).round(x)
    assert torch.equal(torch.from_numpy(codes[:, :96].astype(np.float32) * scales), reference)


@pytest.mark.parametrize("unit", RUNNABLE)
@pytest.mark.parametrize("options", [{"whole_row": True}, {"fixed_scale": 0.01}], ids=str)
def test_int8_rows_that_are_not_finite(options: dict, unit: str) -> None:
    x = np.ones((2, 96), np.float32)
    x[1, 40] = np.inf
    codes, scales, sums = rows_for(2, 128, 3)
    _kernels.quantize_rows(x, codes, scales, sums, 32, unit=unit, **options)
    assert np.isnan(scales).tolist() == [[False] * 3, [True] * 3]
    assert not codes[1].any()
    assert not sums[1].any()
