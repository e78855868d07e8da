"""The knapsack against brute force; a budget is never exceeded; file sizes are known before the file is written."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from octavo.numerics.scheme import IntegerScheme
from octavo.quantize.allocate import Choice, allocate, bytes_within
from octavo.quantize.file_size import StoredTensor, header_bytes, safetensors_bytes, stored_parts

_CHOICES = st.builds(Choice, st.integers(1, 400), st.integers(0, 50).map(float))
_GROUPS = st.lists(st.lists(_CHOICES, min_size=1, max_size=4), min_size=1, max_size=5)


def _best(groups: list[list[Choice]], budget: int) -> float | None:
    errors = [
        sum(choice.error for choice in chosen)
        for chosen in itertools.product(*groups)
        if sum(choice.num_bytes for choice in chosen) <= budget
    ]
    return min(errors, default=None)


@settings(max_examples=50, deadline=None)
@given(_GROUPS, st.integers(0, 2000))
def test_no_choice_within_the_budget_is_better(groups: list[list[Choice]], budget: int) -> None:
    found = allocate(groups, budget)
    best = _best(groups, budget)
    if found is None:
        assert best is None
        return
    chosen = [group[index] for group, index in zip(groups, found.chosen, strict=True)]
    assert found.num_bytes == sum(choice.num_bytes for choice in chosen) <= budget
    assert found.error == sum(choice.error for choice in chosen) == best
    assert found.is_exact


@settings(max_examples=50, deadline=None)
@given(_GROUPS, st.integers(0, 2000), st.integers(2, 40))
def test_with_few_states_the_budget_still_holds(groups: list[list[Choice]], budget: int, max_states: int) -> None:
    found = allocate(groups, budget, max_states)
    best = _best(groups, budget)
    assert (found is None) == (best is None)
    if found is not None and best is not None:
        assert found.num_bytes <= budget
        assert found.error >= best
        assert not found.is_exact or found.error == best


@settings(max_examples=50, deadline=None)
@given(_GROUPS, st.integers(0, 120))
def test_the_fewest_bytes_for_an_error(groups: list[list[Choice]], error: int) -> None:
    found = bytes_within(groups, error)
    if found is None:
        assert sum(min(choice.error for choice in group) for group in groups) > error
        return
    within, below = allocate(groups, found), allocate(groups, found - 1)
    assert within is not None
    assert within.error <= error
    assert below is None or below.error > error


def test_a_large_problem_spends_its_budget() -> None:
    """120 groups like a 135M model's: a grid of bytes that has no common divisor, to within one upgrade (1 %)."""
    groups = [[Choice((100_003 + 7 * number) * bits, 4.0**-bits) for bits in (2, 3, 4, 8)] for number in range(120)]
    found = allocate(groups, 50_000_000)
    assert found is not None
    assert 0.99 * 50_000_000 < found.num_bytes <= 50_000_000


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@settings(max_examples=3, deadline=None)
@given(st.integers(1, 70), st.integers(1, 3), st.sampled_from(["F16", "BF16", "F32"]))
def test_a_file_has_the_size_that_was_planned(
    tmp_path_factory: pytest.TempPathFactory, bits: int, symmetric: bool, outputs: int, groups: int, scales: str
) -> None:
    scheme = IntegerScheme(bits, 32, symmetric)
    parts = [
        *stored_parts("model.layers.0.mlp.down_proj", (outputs, 32 * groups), scheme, scales),
        *stored_parts("model.embed_tokens", (outputs, 32), IntegerScheme(8), scales, is_embedding=True, tied_head="h"),
        StoredTensor("model.norm.weight", "F32", (outputs,)),
    ]
    file = tmp_path_factory.mktemp("size") / "model.safetensors"
    _write(file, parts)
    assert file.stat().st_size == safetensors_bytes(parts)
    data = sum(part.num_bytes for part in parts)
    assert file.stat().st_size <= data + header_bytes(parts, file.stat().st_size) + 64


def _write(file: Path, parts: list[StoredTensor]) -> None:
    dtypes = {
        "I64": torch.int64, "F32": torch.float32, "I32": torch.int32, "BF16": torch.bfloat16, "F16": torch.float16,
        "I8": torch.int8,
    }  # fmt: skip
    save_file({part.name: torch.zeros(part.shape, dtype=dtypes[part.dtype]) for part in parts}, file, {"format": "pt"})
