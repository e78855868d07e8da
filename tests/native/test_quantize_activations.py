"""The int8 activation kernel: every unit against numpy and against each other, bit for bit."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_strategies

from octavo.core.errors import InvalidField
from octavo.ops.native import _kernels
from octavo.ops.native.kernel_units import chosen_unit, cpu_features, kernel_units
from octavo.ops.native.quantize_activations import quantize_activations

RUNNABLE = [unit.name for unit in kernel_units() if unit.is_available]
SMALLEST_NORMAL = np.finfo(np.float32).tiny


def by_numpy(x: np.ndarray, group_size: int) -> tuple[np.ndarray, np.ndarray]:
    """The definition, written with numpy's float32 arithmetic."""
    groups = x.reshape(x.shape[0], -1, group_size)
    absmax = np.abs(groups).max(-1)
    scales = absmax / np.float32(127)
    is_zero = scales < SMALLEST_NORMAL
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.where(is_zero, np.float32(0), np.float32(127) / absmax)
    codes = np.rint(groups * inverse[..., None]).astype(np.int8)
    return codes.reshape(x.shape), np.where(is_zero, np.float32(0), scales)


def assert_equals_numpy(x: np.ndarray, group_size: int, unit: str) -> None:
    codes, scales = quantize_activations(x, group_size, unit)
    expected_codes, expected_scales = by_numpy(x, group_size)
    np.testing.assert_array_equal(codes, expected_codes)
    np.testing.assert_array_equal(scales.view(np.int32), expected_scales.view(np.int32))


@pytest.mark.parametrize("unit", RUNNABLE)
@pytest.mark.parametrize("group_size", [16, 32, 64, 128, 256, 768, 7, 33, 1])
def test_equals_numpy_on_activation_like_values(unit: str, group_size: int) -> None:
    random = np.random.default_rng(group_size)
    columns = group_size * (768 // group_size if group_size > 7 else 5)
    x = random.standard_normal((37, columns)).astype(np.float32)
    x[:, :: max(1, columns // 3)] *= 50  # outlier channels
    assert_equals_numpy(x, group_size, unit)


@pytest.mark.parametrize("unit", RUNNABLE)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_equals_numpy_on_any_shape_and_any_finite_values(unit: str, data: st.DataObject) -> None:
    group_size = data.draw(st.integers(1, 70), label="group_size")
    shape = (data.draw(st.integers(1, 4)), group_size * data.draw(st.integers(1, 4)))
    finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
    assert_equals_numpy(data.draw(numpy_strategies.arrays(np.float32, shape, elements=finite)), group_size, unit)


@pytest.mark.parametrize("unit", RUNNABLE)
def test_ties_go_to_the_even_code(unit: str) -> None:
    x = np.array([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5, -126.5]], np.float32)
    codes, scales = quantize_activations(x, unit=unit)
    assert scales.tolist() == [[1.0]]
    assert codes.tolist() == [[127, 0, 2, 2, 0, -2, -2, 126, -126]]


@pytest.mark.parametrize("unit", RUNNABLE)
def test_a_group_of_zeros_or_of_subnormals_is_zero(unit: str) -> None:
    x = np.zeros((1, 96), np.float32)
    x[0, 32:64] = 1e-40
    x[0, 64:] = 1.0
    codes, scales = quantize_activations(x, 32, unit)
    assert scales.tolist() == [[0.0, 0.0, np.float32(1) / np.float32(127)]]
    assert codes[0, :64].any() == np.False_
    assert (codes[0, 64:] == 127).all()


@pytest.mark.parametrize("unit", RUNNABLE)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("column", [64, 75, 95])
def test_nan_and_infinity_are_refused_with_their_place(unit: str, bad: float, column: int) -> None:
    x = np.ones((3, 96), np.float32)
    x[2, column] = bad
    with pytest.raises(InvalidField, match="row 2, columns 64 to 95 must be finite"):
        quantize_activations(x, 32, unit)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    x = np.random.default_rng(0).standard_normal((16, 192)).astype(np.float32)
    codes, scales = quantize_activations(x, 64)
    for row in range(16):
        alone_codes, alone_scales = quantize_activations(x[row : row + 1], 64)
        np.testing.assert_array_equal(alone_codes[0], codes[row])
        np.testing.assert_array_equal(alone_scales[0], scales[row])


def test_the_error_is_at_most_half_a_step() -> None:
    x = np.random.default_rng(1).standard_normal((8, 256)).astype(np.float32)
    codes, scales = quantize_activations(x, 64)
    error = np.abs(codes.reshape(8, 4, 64) * scales[..., None] - x.reshape(8, 4, 64))
    assert (error <= scales[..., None] * 0.5001).all()


@pytest.mark.parametrize("group_size", [50, 0, -16, 193])
def test_a_group_that_does_not_divide_the_columns_is_refused(group_size: int) -> None:
    with pytest.raises(InvalidField, match=f"group_size: got {group_size}; a group must divide the 192 columns"):
        quantize_activations(np.ones((2, 192), np.float32), group_size)


@pytest.mark.parametrize(
    "x",
    [np.ones((2, 8)), np.ones(8, np.float32), np.ones((2, 16), np.float32)[:, ::2], np.ones((2, 0), np.float32)],
    ids=["float64", "one axis", "strided", "no columns"],
)
def test_other_arrays_are_refused(x: np.ndarray) -> None:
    with pytest.raises(InvalidField, match="x: got"):
        quantize_activations(x)


def test_no_rows_give_no_rows() -> None:
    codes, scales = quantize_activations(np.ones((0, 64), np.float32), 32)
    assert (codes.shape, scales.shape) == ((0, 64), (0, 2))


def test_an_unknown_unit_is_refused_with_those_that_run() -> None:
    with pytest.raises(InvalidField, match="portable"):
        quantize_activations(np.ones((1, 8), np.float32), unit="sse9")


def rows_for(rows: int, padded: int, groups: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes, scales and sums that hold something else than what will be written."""
    return (
        np.full((rows, padded), 77, np.int8),
        np.full((rows, groups), -1, np.float32),
        np.full((rows, groups), 9, np.int32),
    )


@pytest.mark.parametrize("unit", RUNNABLE)
@pytest.mark.parametrize(("features", "group"), [(64, 64), (172, 32), (576, 64), (100, 16), (130, 130), (20, 16)])
def test_rows_have_sums_a_short_last_group_and_zeros_behind(unit: str, features: int, group: int) -> None:
    """What the linear kernels read (native/kernels/rows.hpp): the last group may be shorter, padding holds zeros."""
    x = np.random.default_rng(features).standard_normal((3, features)).astype(np.float32)
    padded, groups = -(-features // 64) * 64, -(-features // group)
    codes, scales, sums = rows_for(3, padded, groups)
    _kernels.quantize_rows(x, codes, scales, sums, group, unit=unit)
    assert not codes[:, features:].any()
    for index in range(groups):
        part = slice(index * group, min(features, (index + 1) * group))
        expected_codes, expected_scales = by_numpy(x[:, part], part.stop - part.start)
        np.testing.assert_array_equal(codes[:, part], expected_codes)
        np.testing.assert_array_equal(scales[:, index], expected_scales[:, 0])
        np.testing.assert_array_equal(sums[:, index], expected_codes.sum(1, dtype=np.int32))


@pytest.mark.parametrize("unit", RUNNABLE)
def test_a_row_in_pieces_is_the_row(unit: str) -> None:
    """Threads may share a row: each quantizes its own groups, and only the last piece writes the padding."""
    x = np.random.default_rng(2).standard_normal((2, 172)).astype(np.float32)
    whole, pieces = rows_for(2, 192, 6), rows_for(2, 192, 6)
    _kernels.quantize_rows(x, *whole, 32, unit=unit)
    for first, end in [(128, 172), (0, 96), (96, 128)]:
        _kernels.quantize_rows(x[:, first:end].copy(), *pieces, 32, first, unit)
    for left, right in zip(whole, pieces, strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("unit", RUNNABLE)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_group_that_is_not_finite_has_scale_nan_and_codes_zero(unit: str, bad: float) -> None:
    x = np.ones((1, 96), np.float32)
    x[0, 40] = bad
    codes, scales, sums = rows_for(1, 128, 3)
    _kernels.quantize_rows(x, codes, scales, sums, 32, unit=unit)
    assert np.isnan(scales).tolist() == [[False, True, False]]
    assert (codes[0, 32:64].any(), sums[0, 1]) == (False, 0)
    assert (codes[0, :32] == 127).all()


def test_the_extension_itself_refuses_a_unit_that_cannot_run_and_wrong_shapes() -> None:
    x = np.ones((1, 8), np.float32)
    codes, scales, sums = rows_for(1, 8, 1)
    with pytest.raises(ValueError, match=r"cannot run here.*these can: portable"):
        _kernels.quantize_rows(x, codes, scales, sums, 8, unit="sse9")
    with pytest.raises(ValueError, match="at least the features"):
        _kernels.quantize_rows(x, codes[:, :4].copy(), scales, sums, 8)
    with pytest.raises(ValueError, match="rows, groups"):
        _kernels.quantize_rows(x, codes, scales, sums, 4)
    with pytest.raises(ValueError, match="multiple of the group"):
        _kernels.quantize_rows(x, codes, scales, sums, 8, 3)


def test_torch_tensors_pass_without_a_copy() -> None:
    x = torch.randn(4, 64)
    codes, scales = torch.empty(4, 64, dtype=torch.int8), torch.empty(4, 2)
    _kernels.quantize_rows(x, codes, scales, torch.empty(4, 2, dtype=torch.int32), 32)
    expected_codes, expected_scales = quantize_activations(x.numpy(), 32)
    np.testing.assert_array_equal(codes.numpy(), expected_codes)
    np.testing.assert_array_equal(scales.numpy(), expected_scales)


def test_the_chosen_unit_is_the_best_that_runs() -> None:
    units = kernel_units()
    assert units[0].name == "portable"
    assert units[0].is_available
    assert chosen_unit().name == RUNNABLE[-1]
    for unit in units[1:]:
        assert unit.is_available == (set(unit.needs.split()) <= set(cpu_features()))


def test_cpu_features_agree_with_the_kernel() -> None:
    try:
        with open("/proc/cpuinfo") as file:
            flags = next(line for line in file if line.startswith("flags")).split()
    except (OSError, StopIteration):
        pytest.skip("no x86 flags in /proc/cpuinfo")
    assert set(cpu_features()) <= set(flags)
    assert {"avx2", "fma", "avx512f"} & set(flags) == {"avx2", "fma", "avx512f"} & set(cpu_features())


def test_other_threads_run_while_a_kernel_does() -> None:
    """The kernel lets go of the interpreter: a counting thread advances during one long call."""
    x = np.ones((8192, 4096), np.float32)
    ticks, done = 0, threading.Event()

    def count() -> None:
        nonlocal ticks
        while not done.is_set():
            ticks += 1
            time.sleep(0.001)

    counter = threading.Thread(target=count)
    arrays = rows_for(8192, 4096, 128)
    counter.start()
    while ticks == 0:
        time.sleep(0.001)
    before = ticks
    _kernels.quantize_rows(x, *arrays, 32, unit="portable")
    during = ticks - before
    done.set()
    counter.join()
    assert during >= 2
