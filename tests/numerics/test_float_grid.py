"""Floating-point grids: nearest, saturating, defined for zeros; the compressed-tensors package gets the same bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core.errors import InvalidField
from octavo.numerics.float_grid import choose_float_grid, encode_float, encode_values, nearest_values_
from octavo.numerics.float_scheme import MXFP4, MXFP8, NVFP4, FloatFormat, FloatScheme, Granularity, ScaleFormat
from octavo.numerics.float_tensor import FloatTensor

E4M3, E5M2 = FloatFormat.E4M3, FloatFormat.E5M2
SCHEMES = [
    *(FloatScheme(format, granularity) for format in (E4M3, E5M2) for granularity in list(Granularity)[:3]),
    FloatScheme(E4M3, Granularity.CHANNEL, None, ScaleFormat.BFLOAT16),
    FloatScheme(E4M3, Granularity.GROUP, 128),
    NVFP4, MXFP4, MXFP8,
]  # fmt: skip


def values_of(format: FloatFormat) -> torch.Tensor:
    """Every finite value, from the definition: sign, exponent, mantissa, subnormals; bit patterns in order."""
    exponent_bits, mantissa_bits, bias = {E4M3: (4, 3, 7), E5M2: (5, 2, 15), FloatFormat.E2M1: (2, 1, 1)}[format]
    values = []
    for code in range(2 ** (1 + exponent_bits + mantissa_bits)):
        mantissa = code % 2**mantissa_bits
        exponent = code >> mantissa_bits & (2**exponent_bits - 1)
        value = (
            mantissa * 2.0 ** (1 - bias - mantissa_bits)
            if exponent == 0
            else (1 + mantissa / 2**mantissa_bits) * 2.0 ** (exponent - bias)
        )
        negative = code >> (exponent_bits + mantissa_bits)
        if value <= format.largest:
            values.append(-value if negative else value)
    return torch.tensor(values)


def weights(rows: int = 48, columns: int = 256, seed: int = 0) -> torch.Tensor:
    """Heavy tails, and magnitudes that differ from row to row."""
    generator = torch.Generator().manual_seed(seed)
    spread = torch.randn(rows, 1, generator=generator).exp()
    return torch.randn(rows, columns, generator=generator) * torch.randn(rows, columns, generator=generator) * spread


@pytest.mark.parametrize("format", list(FloatFormat))
def test_every_code_means_what_the_definition_says(format: FloatFormat) -> None:
    values = values_of(format).reshape(1, -1)
    codes = encode_values(values, format)
    scheme = FloatScheme(format, Granularity.CHANNEL) if format.bits == 8 else MXFP4
    scale = torch.ones(1, 1) if format.bits == 8 else torch.full((1, 1), 127, dtype=torch.uint8)
    decoded = FloatTensor(codes, scale, None, scheme, (1, values.shape[1])).values()
    assert torch.equal(decoded, values)
    assert torch.equal(torch.signbit(decoded), torch.signbit(values))
    assert values.unique().numel() == {E4M3: 253, E5M2: 247, FloatFormat.E2M1: 15}[format]


@pytest.mark.parametrize("format", list(FloatFormat))
def test_nearest_with_ties_to_even(format: FloatFormat) -> None:
    """Brute force: all values, all midpoints and both neighbours of each; a tie goes to the even bit pattern."""
    grid = values_of(format)
    positive = grid[: len(grid) // 2]
    midpoints = (positive[1:].double() + positive[:-1].double()).div(2).float()
    x = torch.cat([positive, midpoints, midpoints * (1 + 1e-6), midpoints * (1 - 1e-6), -midpoints])
    distance = (x.double()[:, None].abs() - positive.double()).abs()
    nearest = distance.argmin(1)
    above = (nearest + 1).clamp_max(len(positive) - 1)
    tie = (above > nearest) & (distance.gather(1, above[:, None])[:, 0] == distance.amin(1))
    expected = positive[nearest + (tie & (nearest % 2 == 1))] * x.sign()
    assert torch.equal(nearest_values_(x.clone(), format), expected)
    padded = torch.nn.functional.pad(x, (0, len(x) % 2))[None]
    codes = encode_values(padded, format)
    scheme = FloatScheme(format, Granularity.CHANNEL) if format.bits == 8 else MXFP4
    decoded = FloatTensor(codes, torch.empty(0), None, scheme, (1, padded.shape[1])).values()
    assert torch.equal(decoded[0, : len(x)], expected)


@pytest.mark.parametrize("format", list(FloatFormat))
def test_saturates_and_never_becomes_nan(format: FloatFormat) -> None:
    largest = format.largest
    x = torch.tensor([largest, largest * 1.03, largest * 1.2, 1e30, torch.finfo(torch.float32).max, torch.inf])
    assert nearest_values_(x.clone(), format).tolist() == [largest] * 6
    assert nearest_values_(-x, format).tolist() == [-largest] * 6


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("search", [False, True])
def test_codes_are_nearest_on_the_stored_grid(scheme: FloatScheme, search: bool) -> None:
    weight = weights()
    tensor = encode_float(weight, scheme, search=search)
    step = tensor.row_scales().repeat_interleave(tensor.inputs_per_scale, dim=1)[:, :256]
    points = values_of(scheme.format).double()
    best = torch.stack([(weight.double() - point * step.double()).abs() for point in points]).amin(0)
    ours = (weight.double() - tensor.dequantize().double()).abs()
    assert (ours <= best + weight.double().abs() * 1e-6).all()


@pytest.mark.parametrize("scheme", [NVFP4, MXFP4, MXFP8], ids=str)
def test_search_is_never_worse_in_any_group(scheme: FloatScheme) -> None:
    weight, size = weights(columns=512), scheme.group_size or 1
    importance = torch.rand(512, generator=torch.Generator().manual_seed(1)) ** 4

    def errors(**options: Any) -> torch.Tensor:
        difference = encode_float(weight, scheme, **options).dequantize() - weight
        return (difference.square() * importance).reshape(len(weight), -1, size).sum(-1)

    rule, searched = errors(search=False), errors(importance=importance)
    assert (searched <= rule * (1 + 1e-5)).all()
    if scheme is not MXFP8:
        assert searched.sum() < (0.9 if scheme is NVFP4 else 0.999) * rule.sum()


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_zeros_stay_zeros_and_scales_stay_finite(scheme: FloatScheme) -> None:
    """Users' case 14: a group, a row, a block or a matrix of zeros has a defined scale."""
    for weight in (torch.zeros(130, 256), weights(130, 256)):
        weight[3] = 0
        weight[:, 128:] = 0
        tensor = encode_float(weight, scheme)
        assert torch.isfinite(tensor.row_scales()).all()
        assert (tensor.row_scales() > 0).all()
        assert (tensor.dequantize()[weight == 0] == 0).all()


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("magnitude", [1e-45, 1e-38, 1e-30, 1e30, 3e38])
def test_extreme_magnitudes_stay_finite(scheme: FloatScheme, magnitude: float) -> None:
    weight = weights(4).sign() * magnitude
    weight[0, :128] *= 1e-3
    values = encode_float(weight, scheme).dequantize()
    assert torch.isfinite(values).all()
    if 1e-38 < magnitude < 3e38:
        assert torch.allclose(values[1:], weight[1:], rtol=0.34)


@pytest.mark.parametrize(("rows", "columns"), [(192, 576), (130, 64), (1, 128), (128, 129), (300, 384)])
def test_ragged_blocks(rows: int, columns: int) -> None:
    """The last blocks hold what is left; each has its own scale."""
    weight = weights(rows, columns)
    tensor = encode_float(weight, FloatScheme(E4M3, Granularity.BLOCK))
    assert tensor.scale.shape == (-(-rows // 128), -(-columns // 128))
    for row in range(tensor.scale.shape[0]):
        for column in range(tensor.scale.shape[1]):
            block = (slice(128 * row, 128 * row + 128), slice(128 * column, 128 * column + 128))
            assert tensor.scale[row, column] == weight[block].abs().max() / 448
            assert torch.allclose(tensor.dequantize()[block], weight[block], atol=float(weight[block].abs().max()) / 28)
    part = tensor.slice_rows(rows // 2, rows)
    assert torch.equal(part.dequantize(), tensor.dequantize()[rows // 2 :])
    index = torch.tensor([0, rows - 1])
    assert torch.equal(tensor.rows(index), tensor.dequantize()[index])


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_parts_give_the_tensor_back(scheme: FloatScheme) -> None:
    tensor = encode_float(weights(130), scheme)
    again = FloatTensor.from_parts(tensor.parts(), scheme, tensor.shape)
    assert torch.equal(again.dequantize(), tensor.dequantize())
    assert torch.equal(tensor.slice_rows(3, 70).dequantize(), tensor.dequantize()[3:70])


@pytest.mark.parametrize("scheme", [NVFP4, MXFP4, MXFP8, FloatScheme(E4M3)], ids=str)
def test_grid_values_packed_again_are_the_same_codes(scheme: FloatScheme) -> None:
    weight = weights()
    grid = choose_float_grid(weight, scheme)
    step = grid.steps().repeat_interleave(grid.inputs_per_step, dim=1)
    multiples = nearest_values_(weight / step, scheme.format)
    assert torch.equal(grid.pack(multiples).dequantize(), grid.round(weight).dequantize())


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_weights_that_are_not_finite_are_refused(bad: float) -> None:
    weight = weights()
    weight[2, 3] = bad
    for scheme in SCHEMES:
        with pytest.raises(InvalidField, match="finite"):
            encode_float(weight, scheme)


def test_groups_that_do_not_divide_are_refused() -> None:
    """Users' case 9."""
    with pytest.raises(InvalidField, match="do not divide 40 inputs"):
        encode_float(torch.ones(2, 40), NVFP4)


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 150), groups=st.integers(1, 9), seed=st.integers(0, 2**16), index=st.integers(0, 10))
def test_any_shape(rows: int, groups: int, seed: int, index: int) -> None:
    scheme = SCHEMES[index]
    weight = weights(rows, groups * (scheme.group_size or 23), seed)
    values = encode_float(weight, scheme, search=seed % 2 == 0).dequantize()
    step = 0.26 if scheme.format is FloatFormat.E2M1 else 0.13
    reference = weight.abs().amax() if scheme.granularity in (Granularity.TENSOR, Granularity.BLOCK) else None
    largest = weight.abs().reshape(rows, groups, -1).amax(-1, keepdim=True).expand(-1, -1, weight.shape[1] // groups)
    bound = largest.reshape(weight.shape) if reference is None else reference
    if scheme.group_size is None:
        bound = weight.abs().amax(1, keepdim=True) if reference is None else reference
    assert ((values - weight).abs() <= step * bound + 1e-12).all()


def test_precision_of_e4m3_and_range_of_e5m2() -> None:
    """docs/formats.md quotes these: signal to noise of Gaussian data with a scale for each row, in dB."""
    weight = torch.randn(256, 1024, generator=torch.Generator().manual_seed(0))

    def snr(scheme: FloatScheme, x: torch.Tensor) -> float:
        noise = (encode_float(x, scheme).dequantize() - x).square().sum()
        return float(10 * torch.log10(x.square().sum() / noise))

    precise, wide = snr(FloatScheme(E4M3), weight), snr(FloatScheme(E5M2), weight)
    assert 31.0 < precise < 32.5
    assert 25.0 < wide < 26.5
    one_outlier = torch.cat([weight[:1] * 3e5, weight[1:]])
    matrix = [encode_float(one_outlier, FloatScheme(format, Granularity.TENSOR)) for format in (E4M3, E5M2)]
    lost = [float((tensor.dequantize()[1:] == 0).float().mean()) for tensor in matrix]
    assert lost[0] > 0.9
    assert lost[1] < 0.1
