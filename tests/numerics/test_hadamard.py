"""Hadamard matrices: exactly orthogonal, for every size a model needs; reproducible by seed."""

from __future__ import annotations

import pytest
import torch

from octavo.core.errors import InvalidField
from octavo.numerics.hadamard import hadamard, has_hadamard, random_hadamard

#: Bases, powers of two, and hidden sizes of models: SmolLM2 (576, 960), Qwen (896, 1536), Llama (2048), Gemma (640).
SIZES = (1, 2, 4, 8, 12, 20, 24, 28, 36, 40, 44, 48, 60, 64, 96, 108, 140, 576, 640, 896, 960, 1152, 1536, 2048)


@pytest.mark.parametrize("size", SIZES)
def test_rows_are_orthogonal_in_whole_numbers(size: int) -> None:
    matrix = hadamard(size)
    assert tuple(matrix.shape) == (size, size)
    assert set(matrix.flatten().tolist()) <= {-1, 1}
    product = matrix.float() @ matrix.float().T  # whole numbers below 2^24: exact
    assert torch.equal(product, size * torch.eye(size))


@pytest.mark.parametrize("size", [0, 3, 6, 18, 52, 92, 156, 172])
def test_unknown_sizes_are_refused(size: int) -> None:
    """52 needs a prime power; 92, 156 and 172 need tables; the others have none."""
    assert not has_hadamard(size)
    with pytest.raises(InvalidField, match="primes"):
        hadamard(size)


def test_random_signs_come_from_the_seed() -> None:
    one, same, other = (random_hadamard(36, torch.Generator().manual_seed(seed)) for seed in (5, 5, 6))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert (one @ one.T - torch.eye(36, dtype=torch.float64)).abs().max() < 1e-14
