"""The linear kernels: every unit has the bits that native/kernels/packed_weight.hpp defines, whatever is batched."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from octavo.numerics.packed_tensor import PackedTensor
from octavo.numerics.scheme import IntegerScheme
from octavo.ops.native import _kernels
from octavo.ops.native.input_form import activation_group
from octavo.ops.native.kernel_units import kernel_units
from octavo.ops.native.packing import pack

Floats = NDArray[np.float32]

RUNNABLE = [unit.name for unit in kernel_units() if unit.is_available]
ROW_COUNTS = (1, 2, 3, 4, 5, 7, 8, 9, 10, 13, 40)
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def fma(a: Floats, b: Floats, c: Floats) -> Floats:
    """a * b + c, rounded once. The product is exact in float64; the sum is rounded to odd there (Boldo and Melquiond
    2008), after which rounding to float32 is the correct rounding of the exact sum."""
    product, addend = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    total = product + addend
    part = total - product
    error = (product - (total - part)) + (addend - part)  # Knuth's two-sum: total + error is exact
    away = error * total < 0
    truncated = np.where(away, np.nextafter(total, 0.0), total)
    odd = (truncated.view(np.int64) | 1).view(np.float64)
    return np.where(error == 0.0, total, odd).astype(np.float32)


@dataclass(frozen=True)
class Activations:
    """int8 rows as the kernels take them: codes [rows, inputs padded to 64], scales and sums [rows, groups]."""

    codes: NDArray[np.int8]
    scales: Floats
    sums: NDArray[np.int32]

    def rows(self, first: int, end: int) -> Activations:
        return Activations(*(np.ascontiguousarray(a[first:end]) for a in (self.codes, self.scales, self.sums)))


def random_activations(rows: int, inputs: int, group: int, generator: np.random.Generator) -> Activations:
    codes = np.zeros((rows, -(-inputs // 64) * 64), np.int8)
    codes[:, :inputs] = generator.integers(-127, 128, (rows, inputs))
    codes[0, :inputs] = 127  # what saturates must be seen
    codes[-1, :inputs] = -127
    starts = range(0, inputs, group)
    sums = np.stack([codes[:, s : min(s + group, inputs)].sum(1, dtype=np.int32) for s in starts], 1)
    scales = generator.uniform(0.001, 0.1, (rows, len(starts))).astype(np.float32)
    return Activations(codes, scales, np.ascontiguousarray(sums))


def random_weight(
    scheme: IntegerScheme, outputs: int, inputs: int, scale_dtype: torch.dtype, generator: np.random.Generator
) -> PackedTensor:
    codes = generator.integers(scheme.lowest, scheme.highest + 1, (outputs, inputs)).astype(np.int8)
    codes[0] = scheme.highest
    groups = scheme.num_groups(inputs)
    scale = torch.from_numpy(generator.uniform(-0.02, 0.02, (outputs, groups)).astype(np.float32)).to(scale_dtype)
    zeros = None
    if not scheme.symmetric:
        zeros = torch.from_numpy(
            generator.integers(scheme.lowest, scheme.highest + 1, (outputs, groups)).astype(np.int8)
        )
    return PackedTensor.from_codes(torch.from_numpy(codes), scale, zeros, scheme)


def defined_product(weight: PackedTensor, x: Activations, group: int) -> Floats:
    """y [rows, outputs]: for groups in order, y = fma(float(sum((code - zero) * activation)), w_scale * x_scale, y)."""
    outputs, inputs = weight.shape
    per_scale = weight.scheme.group_size or inputs
    codes = weight.codes().numpy().astype(np.int64)
    w_scales = weight.scale.to(torch.float32).numpy()
    y = np.zeros((len(x.codes), outputs), np.float32)
    for index, start in enumerate(range(0, inputs, group)):
        end, scale_group = min(start + group, inputs), start // per_scale
        zero = 0 if weight.zero_point is None else weight.zero_point[:, scale_group, None].numpy().astype(np.int64)
        bracket = x.codes[:, start:end].astype(np.int64) @ (codes[:, start:end] - zero).T
        y = fma(bracket.astype(np.float32), w_scales[:, scale_group] * x.scales[:, index, None], y)
    return y


def outputs_of(matrix: _kernels.PackedMatrix | _kernels.DenseMatrix, first_tile: int, end_tile: int) -> int:
    return max(0, min(16 * end_tile, matrix.outputs) - 16 * first_tile)


def packed_product(
    matrix: _kernels.PackedMatrix, x: Activations, unit: str, tiles: tuple[int, int] | None = None
) -> Floats:
    first, end = tiles or (0, matrix.tiles)
    y = np.full((len(x.codes), outputs_of(matrix, first, end)), np.nan, np.float32)
    _kernels.packed_linear(matrix, x.codes, x.scales, x.sums, first, end, y, unit)
    return y


SCHEMES = [
    pytest.param(
        bits, symmetric, group, inputs, id=f"{bits} bits, {'' if symmetric else 'a'}symmetric, {group}, {inputs}"
    )
    for bits in (2, 3, 4, 8)
    for symmetric in (True, False)
    for group, inputs in ((16, 48), (32, 96), (64, 576), (128, 256), (256, 256), (None, 172), (None, 48))
]


@pytest.mark.parametrize("unit", RUNNABLE)
@pytest.mark.parametrize(("bits", "symmetric", "group", "inputs"), SCHEMES)
def test_packed_linear_is_what_it_is_defined_to_be(
    bits: int, symmetric: bool, group: int | None, inputs: int, unit: str
) -> None:
    generator = np.random.default_rng(bits * 1000 + inputs)
    for scale_dtype, outputs in zip(DTYPES, (33, 10, 16), strict=True):
        weight = random_weight(IntegerScheme(bits, group, symmetric), outputs, inputs, scale_dtype, generator)
        x = random_activations(ROW_COUNTS[-1], inputs, activation_group(weight), generator)
        expected = defined_product(weight, x, activation_group(weight))
        matrix = pack(weight, activation_group(weight))
        for rows in ROW_COUNTS:
            np.testing.assert_array_equal(packed_product(matrix, x.rows(0, rows), unit), expected[:rows])


@pytest.mark.parametrize("unit", RUNNABLE)
@pytest.mark.parametrize("inputs", [48, 100, 172, 576, 4864])
def test_whole_rows_of_activations_meet_whole_rows_of_weights(inputs: int, unit: str) -> None:
    generator = np.random.default_rng(inputs)
    weight = random_weight(IntegerScheme(8), 20, inputs, torch.float32, generator)
    x = random_activations(9, inputs, inputs, generator)
    y = packed_product(pack(weight, inputs), x, unit)
    np.testing.assert_array_equal(y, defined_product(weight, x, inputs))


@pytest.mark.parametrize("unit", RUNNABLE)
@pytest.mark.parametrize(("bits", "group", "inputs"), [(4, 64, 3200), (3, 32, 1600), (2, 16, 1616), (4, None, 2000)])
def test_rows_wider_than_a_panel(bits: int, group: int | None, inputs: int, unit: str) -> None:
    generator = np.random.default_rng(inputs)
    weight = random_weight(IntegerScheme(bits, group, symmetric=False), 16, inputs, torch.float16, generator)
    x = random_activations(13, inputs, activation_group(weight), generator)
    y = packed_product(pack(weight, activation_group(weight)), x, unit)
    np.testing.assert_array_equal(y, defined_product(weight, x, activation_group(weight)))


@given(data=st.data())
@settings(deadline=None, max_examples=40)
def test_any_shape_rows_and_tiles(data: st.DataObject) -> None:
    group = data.draw(st.sampled_from([16, 32, 64, 128, None]))
    inputs = data.draw(st.integers(1, 300)) if group is None else group * data.draw(st.integers(1, 5))
    scheme = IntegerScheme(data.draw(st.sampled_from([2, 3, 4, 8])), group, data.draw(st.booleans()))
    outputs, rows = data.draw(st.integers(1, 70)), data.draw(st.integers(1, 20))
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    weight = random_weight(scheme, outputs, inputs, data.draw(st.sampled_from(DTYPES)), generator)
    matrix = pack(weight, activation_group(weight))
    x = random_activations(rows, inputs, activation_group(weight), generator)
    expected = defined_product(weight, x, activation_group(weight))
    cut = data.draw(st.integers(0, matrix.tiles))
    row = data.draw(st.integers(0, rows - 1))
    for unit in RUNNABLE:
        parts = [packed_product(matrix, x, unit, (0, cut)), packed_product(matrix, x, unit, (cut, matrix.tiles))]
        np.testing.assert_array_equal(np.concatenate(parts, 1), expected)
        np.testing.assert_array_equal(packed_product(matrix, x.rows(row, row + 1), unit)[0], expected[row])


def test_nan_activations_are_seen() -> None:
    """A row with NaN has scale NaN and codes 0 (rows.hpp): its outputs are NaN, other rows' are not."""
    generator = np.random.default_rng(0)
    weight = random_weight(IntegerScheme(4, 64), 32, 128, torch.float16, generator)
    for rows in (2, 20):
        x = random_activations(rows, 128, 64, generator)
        x.codes[1], x.scales[1, 0], x.sums[1] = 0, np.nan, 0
        for unit in RUNNABLE:
            y = packed_product(pack(weight, 64), x, unit)
            assert np.isnan(y[1]).all()
            assert np.isfinite(np.delete(y, 1, 0)).all()


def dense_product(matrix: _kernels.DenseMatrix, x: Floats, unit: str, tiles: tuple[int, int] | None = None) -> Floats:
    first, end = tiles or (0, matrix.tiles)
    y = np.full((len(x), outputs_of(matrix, first, end)), np.nan, np.float32)
    _kernels.dense_linear(matrix, np.ascontiguousarray(x), first, end, y, unit)
    return y


@pytest.mark.parametrize("unit", RUNNABLE)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("outputs", "inputs"), [(10, 3), (16, 64), (130, 172), (33, 576)])
def test_dense_linear_is_one_chain_of_fma(outputs: int, inputs: int, dtype: torch.dtype, unit: str) -> None:
    generator = np.random.default_rng(inputs)
    weight = torch.from_numpy(generator.normal(0, 0.05, (outputs, inputs)).astype(np.float32)).to(dtype)
    x = generator.normal(0, 1, (ROW_COUNTS[-1], inputs)).astype(np.float32)
    columns = weight.to(torch.float32).numpy().T
    expected = np.zeros((len(x), outputs), np.float32)
    for k in range(inputs):
        expected = fma(x[:, k, None], columns[k], expected)
    matrix = pack(weight, None)
    for rows in ROW_COUNTS:
        np.testing.assert_array_equal(dense_product(matrix, x[:rows], unit), expected[:rows])
    cut = matrix.tiles // 2
    parts = [dense_product(matrix, x, unit, (0, cut)), dense_product(matrix, x, unit, (cut, matrix.tiles))]
    np.testing.assert_array_equal(np.concatenate(parts, 1), expected)
    np.testing.assert_allclose(expected, x @ columns, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("unit", RUNNABLE)
def test_what_does_not_fit_is_refused(unit: str) -> None:
    generator = np.random.default_rng(0)
    matrix = pack(random_weight(IntegerScheme(4, 64), 32, 128, torch.float16, generator), 64)
    x = random_activations(2, 128, 64, generator)
    y = np.empty((2, 32), np.float32)
    wrong = [
        (np.zeros((2, 64), np.int8), x.scales, x.sums, 0, 2, y, "codes must be"),
        (x.codes, x.scales[:, :1].copy(), x.sums, 0, 2, y, "scales and sums"),
        (x.codes, x.scales, x.sums, 0, 3, y, "tiles must be within"),
        (x.codes, x.scales, x.sums, 0, 1, y, "y must be"),
        (x.codes, x.scales, x.sums, 0, 2, y[:1].copy(), "the same rows"),
    ]
    for *arguments, message in wrong:
        with pytest.raises(ValueError, match=message):
            _kernels.packed_linear(matrix, *arguments, unit)
