"""Norms, additions, gates, rotary positions and soft caps: every unit against float64, and against each other."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from octavo.ops.native import _kernels
from octavo.ops.native.kernel_units import kernel_units

RUNNABLE = [unit.name for unit in kernel_units() if unit.is_available]
WIDTHS = [1, 4, 8, 15, 16, 17, 64, 80, 172, 576]

Kernel = Callable[[np.ndarray, np.ndarray, str], np.ndarray]


def numbers(width: int, rows: int = 3, spread: float = 3.0) -> np.ndarray:
    return (np.random.default_rng(width).standard_normal((rows, width)) * spread).astype(np.float32)


def normed(x: np.ndarray, other: np.ndarray, unit: str) -> np.ndarray:
    y = x.copy()
    _kernels.rms_norm(y, other[0].copy(), 1e-5, unit)
    return y


def added(x: np.ndarray, other: np.ndarray, unit: str) -> np.ndarray:
    y = x.copy()
    _kernels.add(y, other, unit)
    return y


def gated_silu(x: np.ndarray, other: np.ndarray, unit: str) -> np.ndarray:
    y = x.copy()
    _kernels.gated(y, other, "silu", unit)
    return y


def gated_gelu(x: np.ndarray, other: np.ndarray, unit: str) -> np.ndarray:
    y = x.copy()
    _kernels.gated(y, other, "gelu_tanh", unit)
    return y


def rotated(x: np.ndarray, other: np.ndarray, unit: str) -> np.ndarray:
    y = x.copy()
    half = x.shape[1] // 2
    _kernels.rope(y, np.cos(other[:, :half]), np.sin(other[:, :half]), unit)
    return y


def capped(x: np.ndarray, other: np.ndarray, unit: str) -> np.ndarray:
    y = x.copy()
    _kernels.softcap(y, 30.0, unit)
    return y


KERNELS: list[Kernel] = [normed, added, gated_silu, gated_gelu, rotated, capped]


def expected(kernel: Kernel, x: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The same in float64."""
    x64, other64 = torch.from_numpy(x).double(), torch.from_numpy(other).double()
    if kernel is normed:
        return (x64 / (x64.square().mean(-1, keepdim=True) + 1e-5).sqrt() * other64[0]).numpy()
    if kernel is added:
        return (x64 + other64).numpy()
    if kernel is gated_silu:
        return (torch.nn.functional.silu(x64) * other64).numpy()
    if kernel is gated_gelu:
        return (torch.nn.functional.gelu(x64, approximate="tanh") * other64).numpy()
    if kernel is capped:
        return (30 * torch.tanh(x64 / 30)).numpy()
    half = x.shape[1] // 2
    a, b, rest = x64[:, :half], x64[:, half : 2 * half], x64[:, 2 * half :]
    cos, sin = torch.cos(other64[:, :half]), torch.sin(other64[:, :half])
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1).numpy()


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
@pytest.mark.parametrize("unit", RUNNABLE)
@pytest.mark.parametrize("width", WIDTHS)
def test_is_the_definition_to_float32_rounding(kernel: Kernel, unit: str, width: int) -> None:
    x, other = numbers(width), numbers(width + 1)[:, :width].copy()
    scale = np.abs(x).max() * max(1.0, np.abs(other).max())
    np.testing.assert_allclose(kernel(x, other, unit), expected(kernel, x, other), rtol=2e-6, atol=2e-7 * scale)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
@pytest.mark.parametrize("width", WIDTHS)
def test_all_units_give_the_same_bits(kernel: Kernel, width: int) -> None:
    x, other = numbers(width, spread=20.0), numbers(width + 1)[:, :width].copy()
    bits = [kernel(x, other, unit).tobytes() for unit in RUNNABLE]
    assert bits == bits[:1] * len(bits)


@pytest.mark.parametrize("kernel", [gated_silu, gated_gelu, capped], ids=lambda kernel: kernel.__name__)
@pytest.mark.parametrize("width", [5, 37])
def test_a_feature_does_not_depend_on_the_lane_it_falls_in(kernel: Kernel, width: int) -> None:
    """A tail is computed like a whole vector, so cutting a row anywhere changes no bit."""
    x, other = numbers(40), numbers(41)[:, :40].copy()
    left = kernel(x[:, :width].copy(), other[:, :width].copy(), "")
    right = kernel(x[:, width:].copy(), other[:, width:].copy(), "")
    assert np.concatenate([left, right], -1).tobytes() == kernel(x, other, "").tobytes()


@pytest.mark.parametrize("unit", RUNNABLE)
@pytest.mark.parametrize("kernel", [gated_silu, gated_gelu, capped], ids=lambda kernel: kernel.__name__)
def test_activations_over_their_whole_range(kernel: Kernel, unit: str) -> None:
    x = np.concatenate([np.linspace(-120, 120, 4001), [0.0, -0.0, 1e-30, -1e-30, 3e4, -3e4]]).astype(np.float32)[None]
    y = kernel(x, np.ones_like(x), unit)
    tolerance = 6e-6 if kernel is capped else 3e-7  # of 30 and of 1
    np.testing.assert_allclose(y, expected(kernel, x, np.ones_like(x)), rtol=2e-6, atol=tolerance)


@pytest.mark.parametrize("unit", RUNNABLE)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
def test_nan_is_not_swallowed(kernel: Kernel, unit: str) -> None:
    x, other = numbers(48), numbers(49)[:, :48].copy()
    x[1, 20] = np.nan
    y = kernel(x, other, unit)
    assert np.isnan(y[1, 20])
    assert not np.isnan(y[[0, 2]]).any()


@pytest.mark.parametrize("unit", RUNNABLE)
def test_partial_rotation_leaves_the_rest(unit: str) -> None:
    heads, angle = numbers(64), numbers(8, rows=3)
    y = heads.copy()
    _kernels.rope(y, np.cos(angle), np.sin(angle), unit)
    assert (y[:, 16:] == heads[:, 16:]).all()
    assert (y[:, :16] != heads[:, :16]).all()


def test_wrong_shapes_are_refused() -> None:
    x = numbers(16)
    with pytest.raises(ValueError, match="a factor for each feature"):
        _kernels.rms_norm(x, np.ones(15, np.float32), 1e-5)
    with pytest.raises(ValueError, match="same shape"):
        _kernels.add(x, numbers(8))
    with pytest.raises(ValueError, match="one of silu, gelu_tanh"):
        _kernels.gated(x, x.copy(), "relu")
    with pytest.raises(ValueError, match="at most half of a head"):
        _kernels.rope(x, numbers(9), numbers(9))
