"""Rounding to integer grids: nearest, never worse than min-max, honest about the stored scale."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core.errors import InvalidField
from octavo.numerics.integer import choose_grid, encode, round_to_grid, to_storage
from octavo.numerics.packed_tensor import PackedTensor
from octavo.numerics.scheme import BITS, IntegerScheme


def _squared_errors(weight: torch.Tensor, scheme: IntegerScheme, **options: object) -> torch.Tensor:
    encoded = encode(weight, scheme, **options)
    packed = PackedTensor.from_codes(encoded.codes, encoded.scale, encoded.zero_point, scheme)
    groups = scheme.num_groups(weight.shape[1])
    return (packed.dequantize() - weight).square().reshape(len(weight), groups, -1).sum(-1)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group", [16, 64, None])
def test_search_is_never_worse_than_min_max_in_any_group(bits: int, symmetric: bool, group: int | None) -> None:
    weight = torch.randn(40, 128, generator=torch.Generator().manual_seed(bits)) * 0.05
    scheme = IntegerScheme(bits, group, symmetric)
    searched = _squared_errors(weight, scheme)
    plain = _squared_errors(weight, scheme, search=False)
    assert (searched <= plain * (1 + 1e-5)).all()
    assert searched.sum() < plain.sum()


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("symmetric", [True, False])
def test_codes_are_the_nearest_points_of_the_stored_grid(bits: int, symmetric: bool) -> None:
    """Brute force over every code of every group."""
    scheme = IntegerScheme(bits, 16, symmetric)
    weight = torch.randn(6, 48, generator=torch.Generator().manual_seed(1))
    encoded = encode(weight, scheme)
    zero = torch.zeros(6, 3) if encoded.zero_point is None else encoded.zero_point.float()
    levels = torch.arange(scheme.lowest, scheme.highest + 1).float()
    points = (levels - zero[..., None]) * encoded.scale.float()[..., None]
    grouped = weight.reshape(6, 3, 16)
    distance = (grouped[..., None] - points[:, :, None, :]).abs()
    chosen = torch.gather(distance, 3, (encoded.codes.reshape(6, 3, 16).long() - scheme.lowest)[..., None])[..., 0]
    assert torch.allclose(chosen, distance.amin(-1), atol=1e-6)


def test_symmetric_range_is_full_and_scales_carry_the_sign() -> None:
    """The element of largest magnitude maps to -2^(b-1), also when it is positive: then the scale is negative."""
    weight = torch.zeros(2, 16)
    weight[0, 3], weight[1, 3] = 8.0, -8.0
    encoded = encode(weight, IntegerScheme(4, 16), search=False)
    assert encoded.scale[:, 0].tolist() == [-1.0, 1.0]
    assert encoded.codes[:, 3].tolist() == [-8, -8]


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("search", [True, False])
def test_zero_groups_stay_zero(symmetric: bool, search: bool) -> None:
    weight = torch.randn(4, 64)
    weight[1, 16:32] = 0
    weight[2] = 0
    scheme = IntegerScheme(4, 16, symmetric)
    encoded = encode(weight, scheme, search=search, importance=torch.zeros(64))
    packed = PackedTensor.from_codes(encoded.codes, encoded.scale, encoded.zero_point, scheme)
    value = packed.dequantize()
    assert torch.isfinite(value).all()
    assert (encoded.scale != 0).all()
    assert not value[2].any()
    assert not value[1, 16:32].any()
    assert not encoded.codes[2].any()


@pytest.mark.parametrize("symmetric", [True, False])
def test_a_constant_group_keeps_its_value(symmetric: bool) -> None:
    for constant in (0.3, -0.3):
        weight = torch.full((1, 32), constant)
        scheme = IntegerScheme(4, 32, symmetric)
        assert _squared_errors(weight, scheme).max() < 32 * (0.3 * 2**-10) ** 2


def test_scales_are_rounded_to_storage_before_codes_are_chosen() -> None:
    """A scale that float16 rounds moves the codes of large elements; the codes must answer to the rounded one."""
    weight = torch.randn(64, 256, generator=torch.Generator().manual_seed(3))
    scheme = IntegerScheme(8, 256)
    grid = choose_grid(weight, scheme, search=False)
    exact = weight.abs().amax(-1, keepdim=True) / 128
    assert grid.scale.dtype == torch.float16
    assert not torch.equal(grid.scale.float().abs(), exact)
    again = (weight / grid.scale.float()).round().clamp(-128, 127).to(torch.int8)
    assert torch.equal(round_to_grid(weight, grid, scheme), again)


@settings(max_examples=60, deadline=None)
@given(
    magnitude=st.floats(-9, 5.5),
    bits=st.sampled_from(BITS),
    symmetric=st.booleans(),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32]),
)
def test_any_magnitude_gives_finite_values_within_one_step(
    magnitude: float, bits: int, symmetric: bool, dtype: torch.dtype
) -> None:
    """Down to float16's subnormal scales, up to just below its overflow."""
    scale = min(10.0**magnitude, 60000.0)
    weight = torch.tensor([[1.0, -0.5, 0.25, 0.0] * 4]) * scale
    scheme = IntegerScheme(bits, 16, symmetric)
    encoded = encode(weight, scheme, scale_dtype=dtype)
    packed = PackedTensor.from_codes(encoded.codes, encoded.scale, encoded.zero_point, scheme)
    assert torch.isfinite(packed.dequantize()).all()
    assert (encoded.scale != 0).all()
    assert (packed.dequantize() - weight).abs().max() <= max(1.01 * scale, 1e-7)


def test_float16_scales_refuse_to_overflow_and_name_what_works() -> None:
    weight = torch.full((1, 16), 1e7)
    with pytest.raises(InvalidField, match="bfloat16"):
        encode(weight, IntegerScheme(4, 16))
    encode(weight, IntegerScheme(4, 16), scale_dtype=torch.bfloat16)


def test_a_vanishing_scale_becomes_the_smallest_one_with_its_sign() -> None:
    stored = to_storage(torch.tensor([1e-12, -1e-12]), torch.float16)
    assert stored.tolist() == [2.0**-24, -(2.0**-24)]


def test_importance_moves_error_away_from_what_matters() -> None:
    weight = torch.randn(32, 64, generator=torch.Generator().manual_seed(5))
    importance = torch.ones(64)
    importance[:8] = 1000.0
    scheme = IntegerScheme(3, 64)
    errors = {}
    for label, chosen in (("plain", None), ("weighted", importance)):
        encoded = encode(weight, scheme, importance=chosen)
        packed = PackedTensor.from_codes(encoded.codes, encoded.scale, encoded.zero_point, scheme)
        errors[label] = ((packed.dequantize() - weight).square() * importance).sum()
    assert errors["weighted"] < 0.9 * errors["plain"]


def test_unfinished_weights_and_wrong_groups_are_refused() -> None:
    with pytest.raises(InvalidField, match="finite"):
        encode(torch.tensor([[float("nan")] * 16]), IntegerScheme(4, 16))
    with pytest.raises(InvalidField, match=r"576.*64"):
        encode(torch.zeros(2, 576), IntegerScheme(4, 128))
