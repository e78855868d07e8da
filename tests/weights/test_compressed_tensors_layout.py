"""Stored tensors of one module: ours and the compressed-tensors package's must be the same bits, both ways."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core.errors import CheckpointError
from octavo.numerics.packed_tensor import PackedTensor
from octavo.numerics.scheme import BITS, GROUP_SIZES, IntegerScheme
from octavo.weights.compressed_tensors_args import INTEGER_LAYOUTS, Layout, ModuleFormat
from octavo.weights.compressed_tensors_layout import decode_module, encode_module
from tests.weights.quantized import random_packed


def assert_equal(left: PackedTensor, right: PackedTensor) -> None:
    assert left.shape == right.shape
    assert left.scheme == right.scheme
    assert torch.equal(left.codes(), right.codes())
    assert torch.equal(left.scale, right.scale)
    assert (left.zero_point is None) == (right.zero_point is None)
    if left.zero_point is not None and right.zero_point is not None:
        assert torch.equal(left.zero_point, right.zero_point)


def package_decodes(parts: dict[str, torch.Tensor], scheme: IntegerScheme, layout: Layout) -> torch.Tensor:
    compressors = pytest.importorskip("compressed_tensors.compressors")
    weights: dict[str, Any] = {"num_bits": scheme.bits, "type": "int", "symmetric": scheme.symmetric}
    weights |= {"strategy": "group" if scheme.group_size else "channel", "group_size": scheme.group_size}
    from compressed_tensors.quantization import QuantizationScheme

    declared = QuantizationScheme(targets=["Linear"], weights=weights, format=layout.value)
    in_float32 = {**parts, "weight_scale": parts["weight_scale"].float()}
    return compressors.BaseCompressor.get_value_from_registry(layout.value).decompress(in_float32, declared)["weight"]


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group_size", [*GROUP_SIZES, None])
@pytest.mark.parametrize("bits", BITS)
def test_every_scheme_both_ways(bits: int, group_size: int | None, symmetric: bool) -> None:
    """33 rows: packed zero points end inside a word."""
    scheme = IntegerScheme(bits, group_size, symmetric)
    packed = random_packed(33, 256 if group_size else 100, scheme)
    for layout in INTEGER_LAYOUTS:
        parts = encode_module(packed, layout)
        assert_equal(decode_module("m", parts, ModuleFormat(scheme, layout)), packed)
        assert torch.equal(package_decodes(parts, scheme, layout), packed.dequantize())


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 70),
    columns=st.integers(1, 150),
    bits=st.sampled_from(BITS),
    symmetric=st.booleans(),
    layout=st.sampled_from(INTEGER_LAYOUTS),
    seed=st.integers(0, 2**16),
)
def test_any_shape(rows: int, columns: int, bits: int, symmetric: bool, layout: Layout, seed: int) -> None:
    """Bug Q2: columns and rows that do not fill their last word."""
    scheme = IntegerScheme(bits, None, symmetric)
    packed = random_packed(rows, columns, scheme, seed)
    parts = encode_module(packed, layout)
    assert_equal(decode_module("m", parts, ModuleFormat(scheme, layout)), packed)
    assert torch.equal(package_decodes(parts, scheme, layout), packed.dequantize())


def test_three_bits_are_packed_densely() -> None:
    """Bug Q2: 576 columns of 3 bits are 54 words, not the 58 of ten codes a word; the old layout is named."""
    scheme = IntegerScheme(3, 64)
    parts = encode_module(random_packed(192, 576, scheme), Layout.PACK_QUANTIZED)
    assert parts["weight_packed"].shape == (192, 54)
    parts["weight_packed"] = torch.zeros(192, 58, dtype=torch.int32)
    with pytest.raises(CheckpointError, match=r"m\.weight_packed.*before 2026"):
        decode_module("m", parts, ModuleFormat(scheme, Layout.PACK_QUANTIZED))


def test_stored_zero_points_are_true_zero_points() -> None:
    """Bug Q2: zeros 0, 7, 8 and 15 in unsigned words come back as they were, none off by one."""
    scheme = IntegerScheme(4, None, symmetric=False)
    zero_point = torch.tensor([[0], [7], [8], [15]], dtype=torch.int16).sub(8).to(torch.int8)
    packed = PackedTensor.from_codes(torch.zeros(4, 8, dtype=torch.int8), torch.ones(4, 1), zero_point, scheme)
    parts = encode_module(packed, Layout.PACK_QUANTIZED)
    assert parts["weight_zero_point"].tolist() == [[0xF870]]
    decoded = decode_module("m", parts, ModuleFormat(scheme, Layout.PACK_QUANTIZED))
    assert torch.equal(decoded.dequantize(), -zero_point.float().expand(4, 8))


def test_one_scale_for_the_whole_matrix() -> None:
    """Strategy `tensor` is read as the same scale for every row."""
    parts = {"weight": torch.arange(-6, 6, dtype=torch.int8).reshape(3, 4), "weight_scale": torch.tensor([0.5])}
    decoded = decode_module("m", parts, ModuleFormat(IntegerScheme(8), Layout.INT_QUANTIZED, per_tensor=True))
    assert torch.equal(decoded.dequantize(), parts["weight"].float() * 0.5)


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("weight_scale", torch.ones(4, 3), r"m\.weight_scale: is torch.float32 \[4, 3\]"),
        ("weight_scale", torch.ones(4, 2, dtype=torch.int32), r"m\.weight_scale: has dtype"),
        ("weight_packed", torch.zeros(4, 9, dtype=torch.int32), r"m\.weight_packed"),
        ("weight_shape", torch.tensor([4, 0]), r"m\.weight_shape"),
        ("weight_shape", torch.tensor([4, 48]), r"m"),
        ("weight_zero_point", torch.zeros(4, 2, dtype=torch.int8), r"m\.weight_zero_point"),
    ],
)
def test_parts_that_contradict_the_scheme(part: str, value: torch.Tensor, message: str) -> None:
    scheme = IntegerScheme(4, 32, symmetric=False)
    parts = encode_module(random_packed(4, 64, scheme), Layout.PACK_QUANTIZED)
    parts[part] = value
    with pytest.raises(CheckpointError, match=message):
        decode_module("m", parts, ModuleFormat(scheme, Layout.PACK_QUANTIZED))


def test_codes_outside_the_declared_bits() -> None:
    parts = {"weight": torch.full((2, 4), 9, dtype=torch.int8), "weight_scale": torch.ones(2, 1)}
    with pytest.raises(CheckpointError, match=r"m\.weight: holds codes outside -8\.\.7"):
        decode_module("m", parts, ModuleFormat(IntegerScheme(4), Layout.INT_QUANTIZED))
