"""Paged attention: against float64, and bit for bit against itself however it is cut, placed and computed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.ops.native import _kernels
from octavo.ops.native.kernel_units import kernel_units
from tests.native.paged_sequence import FORMATS, PART, TILE, Heads, PagedSequence

RUNNABLE = [unit.name for unit in kernel_units() if unit.is_available]
FASTEST = RUNNABLE[-1]

SHAPES = [
    Heads(),
    Heads(head_dim=8, num_kv_heads=4, queries_per_kv=1),
    Heads(head_dim=12, num_kv_heads=1, queries_per_kv=7),
    Heads(head_dim=80, num_kv_heads=1, queries_per_kv=8, softcap=20.0),
    Heads(head_dim=128, num_kv_heads=2, queries_per_kv=2, window=50),
    Heads(head_dim=256, num_kv_heads=1, queries_per_kv=4, window=5, softcap=50.0),
]


def assert_same_bits(left: np.ndarray, right: np.ndarray) -> None:
    np.testing.assert_array_equal(left.view(np.int32), right.view(np.int32))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("heads", SHAPES, ids=str)
def test_is_attention(heads: Heads, format: str) -> None:
    sequence = PagedSequence(heads, 200, format)
    q = sequence.queries(75)
    tolerance = 2e-5 if heads.softcap else 5e-6  # tanh is exact to an ulp of 1, not of itself
    np.testing.assert_allclose(sequence.attend(q, 125), sequence.expected(q, 125), rtol=3e-5, atol=tolerance)


@pytest.mark.parametrize("format", FORMATS)
def test_is_attention_over_several_parts(format: str) -> None:
    sequence = PagedSequence(Heads(), 2 * PART + 100, format)
    q = sequence.queries(9)
    first = sequence.num_tokens - len(q)
    np.testing.assert_allclose(sequence.attend(q, first), sequence.expected(q, first), rtol=3e-5, atol=5e-6)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("heads", SHAPES, ids=str)
def test_queries_together_are_queries_one_by_one(heads: Heads, format: str) -> None:
    sequence = PagedSequence(heads, 150, format)
    q = sequence.queries(150)
    together = sequence.attend(q, 0)
    for queries_per_item in (1, 2, 5, 16, 33):
        assert_same_bits(sequence.attend(q, 0, queries_per_item), together)


@pytest.mark.parametrize("window", [0, 1, 17, 64, 300, PART + 1])
def test_queries_across_parts_are_queries_one_by_one(window: int) -> None:
    """An item's first query may see a part that its last one does not, and the other way round."""
    sequence = PagedSequence(Heads(head_dim=16, num_kv_heads=1, queries_per_kv=2, window=window), 2 * PART + 40)
    q = sequence.queries(80)
    first = 2 * PART - 40
    assert_same_bits(sequence.attend(q, first), sequence.attend(q, first, 1))
    assert_same_bits(sequence.attend(q, first, 7), sequence.attend(q, first, 1))


@pytest.mark.parametrize("from_tile", [0, TILE, PART - TILE, PART, PART + 5 * TILE])
def test_tiles_that_no_query_sees_change_nothing(from_tile: int) -> None:
    sequence = PagedSequence(Heads(head_dim=16, num_kv_heads=1, queries_per_kv=2, window=90), PART + 500)
    q, first = sequence.queries(10), PART + 480
    assert first - 90 + 1 >= from_tile
    assert_same_bits(sequence.attend_item(q, first, from_tile=from_tile), sequence.attend_item(q, first))


def test_keys_behind_the_last_query_change_nothing() -> None:
    """`end` may be anything from the last query's position to the end of the part."""
    sequence = PagedSequence(Heads(), 400)
    q = sequence.queries(4)
    parts = []
    for end in (104, 105, 128, 300, 400):
        part, arrays = sequence.part(len(q))
        sequence.attend_part(q, 100, 0, (0, end), part)
        parts.append(arrays)
    for arrays in parts[1:]:
        for array, first in zip(arrays, parts[0], strict=True):
            assert_same_bits(array, first)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("heads", SHAPES, ids=str)
@pytest.mark.parametrize("garbage", [0xFF, 0x7F, 0x55], ids=["nan", "huge", "finite"])
def test_what_unseen_positions_hold_changes_nothing(heads: Heads, format: str, garbage: int) -> None:
    clean, stale = (PagedSequence(heads, 75, format, block_size=48, garbage=byte) for byte in (0, garbage))
    q = clean.queries(21)
    assert_same_bits(stale.attend(q, 54), clean.attend(q, 54))


@pytest.mark.parametrize("block_size", [32, 48, 64, 256])
@pytest.mark.parametrize("format", FORMATS)
def test_the_size_and_place_of_blocks_change_nothing(block_size: int, format: str) -> None:
    small, other = (PagedSequence(Heads(), 200, format, block_size=size) for size in (16, block_size))
    assert (small.keys == other.keys).all()
    q = small.queries(6)
    assert_same_bits(other.attend(q, 190), small.attend(q, 190))


@pytest.mark.parametrize("queries_per_kv", [2, 3, 4, 5, 6, 7, 8, 12])
def test_heads_together_are_heads_alone(queries_per_kv: int) -> None:
    many = PagedSequence(Heads(head_dim=32, num_kv_heads=1, queries_per_kv=queries_per_kv), 90)
    alone = PagedSequence(Heads(head_dim=32, num_kv_heads=1, queries_per_kv=1), 90)
    q = many.queries(1)
    y = many.attend(q, 89)
    for head in range(queries_per_kv):
        one = alone.attend(q[:, head : head + 1].copy(), 89)
        assert_same_bits(one, y[:, head : head + 1])


@pytest.mark.parametrize("unit", RUNNABLE)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_shape_any_cut_any_unit(unit: str, data: st.DataObject) -> None:
    heads = Heads(
        head_dim=data.draw(st.sampled_from([8, 16, 20, 48]), label="head_dim"),
        num_kv_heads=data.draw(st.integers(1, 2), label="num_kv_heads"),
        queries_per_kv=data.draw(st.integers(1, 5), label="queries_per_kv"),
        window=data.draw(st.sampled_from([0, 0, 1, 16, 70]), label="window"),
        softcap=data.draw(st.sampled_from([0.0, 5.0]), label="softcap"),
    )
    count = data.draw(st.integers(1, 12), label="queries")
    start = data.draw(st.integers(0, 140), label="start")
    format = data.draw(st.sampled_from(FORMATS), label="format")
    sequence = PagedSequence(heads, start + count, format, garbage=0xFF, unit=unit)
    q = sequence.queries(count)
    y = sequence.attend(q, start, data.draw(st.integers(1, count), label="queries per item"))
    fastest = PagedSequence(heads, start + count, format, unit=FASTEST)
    assert_same_bits(y, fastest.attend(q, start))
    np.testing.assert_allclose(y, sequence.expected(q, start), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("format", FORMATS)
def test_units_write_the_same_bytes(format: str) -> None:
    bytes_of = {PagedSequence(Heads(head_dim=40), 50, format, unit=unit).memory.tobytes() for unit in RUNNABLE}
    assert len(bytes_of) == 1


@pytest.mark.parametrize("unit", RUNNABLE)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("head_dim", [8, 64, 300])
def test_blocks_are_laid_out_as_documented(unit: str, format: str, head_dim: int) -> None:
    """Read back by plain numpy: keys transposed, values by row, then the scales."""
    heads = Heads(head_dim=head_dim)
    sequence = PagedSequence(heads, 75, format, block_size=32, unit=unit)
    width = {"float32": 4, "bfloat16": 2}.get(format, 1)
    plane = 32 * head_dim * width
    head_bytes = 2 * plane + (256 if format == "int8" else 0)
    for position in (0, 31, 32, 74):
        for head in range(heads.num_kv_heads):
            block = sequence.memory[sequence.table[position // 32]]
            stored = block[head * head_bytes : (head + 1) * head_bytes]
            keys, values = stored[:plane].view(f"V{width}"), stored[plane : 2 * plane].view(f"V{width}")
            key = as_float64(keys.reshape(head_dim, 32)[:, position % 32], format)
            value = as_float64(values.reshape(32, head_dim)[position % 32], format)
            if format == "int8":
                scales = stored[2 * plane :].view(np.float32).reshape(2, 32)[:, position % 32].astype(np.float64)
                key, value = key * scales[0], value * scales[1]
            elif sequence.scales.size:
                scales = sequence.scales.reshape(2, -1)[:, head].astype(np.float64)
                key, value = key * scales[0], value * scales[1]
            expected = sequence.stored_keys_and_values()
            np.testing.assert_array_equal(key, expected[0][position, head])
            np.testing.assert_array_equal(value, expected[1][position, head])


def as_float64(elements: np.ndarray, format: str) -> np.ndarray:
    raw = np.ascontiguousarray(elements)
    if format == "bfloat16":
        return torch.from_numpy(raw.view(np.int16)).view(torch.bfloat16).double().numpy()
    if format.startswith("fp8"):
        dtype = torch.float8_e4m3fn if format == "fp8" else torch.float8_e5m2
        return torch.from_numpy(raw.view(np.uint8)).view(dtype).double().numpy()
    return raw.view(np.float32 if format == "float32" else np.int8).astype(np.float64)


@pytest.mark.parametrize("unit", RUNNABLE)
def test_folding_a_part_that_saw_nothing_changes_nothing(unit: str) -> None:
    sequence = PagedSequence(Heads(window=30), 700, unit=unit)
    q = sequence.queries(2)
    seen, arrays = sequence.part(2)
    sequence.attend_part(q, 690, 0, (PART, 692), seen)
    before = [array.copy() for array in arrays]
    unseen, _ = sequence.part(2)
    sequence.attend_part(q, 690, 0, (0, PART), unseen)
    _kernels.fold_part(seen, unseen, unit)
    for array, old in zip(arrays, before, strict=True):
        assert_same_bits(array, old)
    empty, empty_arrays = sequence.part(2)
    sequence.attend_part(q, 690, 0, (0, PART), empty)
    _kernels.fold_part(empty, seen, unit)
    for array, old in zip(empty_arrays, before, strict=True):
        assert_same_bits(array, old)


def test_scores_of_any_size_stay_finite() -> None:
    sequence = PagedSequence(Heads(), 130, "float32")
    q = sequence.queries(3) * 3e4
    np.testing.assert_allclose(sequence.attend(q, 127), sequence.expected(q, 127), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("format", ["float32", "bfloat16", "int8"])  # the others have no code for NaN
@pytest.mark.parametrize("unit", RUNNABLE)
def test_a_broken_token_is_seen_by_itself_and_later_ones_only(unit: str, format: str) -> None:
    sequence = PagedSequence(Heads(), 100, format, unit=unit)
    q = sequence.queries(20)
    whole = sequence.attend(q, 80)
    bad = np.full((1, *sequence.keys.shape[1:]), np.nan, np.float32)
    sequence.write(90, bad, bad)
    y = sequence.attend(q, 80)
    assert_same_bits(y[:10], whole[:10])
    assert np.isnan(y[10:]).all()


@pytest.mark.parametrize("unit", RUNNABLE)
def test_a_broken_query_breaks_itself_only(unit: str) -> None:
    sequence = PagedSequence(Heads(), 100, unit=unit)
    q = sequence.queries(20)
    whole = sequence.attend(q, 80)
    q[7, 4] = np.nan
    y = sequence.attend(q, 80)
    assert np.isnan(y[7, 4]).all()
    y[7, 4] = whole[7, 4]
    assert_same_bits(y, whole)


def test_wrong_ranges_and_shapes_are_refused() -> None:
    sequence = PagedSequence(Heads(), 100)
    q, (part, _) = sequence.queries(1), sequence.part(1)
    for bounds in [(16, 100), (0, PART + 1), (64, 64), (-64, 10)]:
        with pytest.raises(ValueError, match="begin at a tile and lie in one part"):
            sequence.attend_part(q, 99, 0, bounds, part)
    with pytest.raises(ValueError, match="in the block table"):
        sequence.attend_part(q, 99, 0, (0, 200), part)
    with pytest.raises(ValueError, match="kv_head"):
        sequence.attend_part(q, 99, 2, (0, 100), part)
    with pytest.raises(ValueError, match="multiple of 16"):
        _kernels.PagedLayer(sequence.memory, sequence.table, 20, 2, 64, "bfloat16")
    with pytest.raises(ValueError, match="not one of float32, bfloat16, int8"):
        _kernels.PagedLayer(sequence.memory, sequence.table, 16, 2, 64, "fp3")
