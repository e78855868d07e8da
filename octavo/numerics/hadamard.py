"""Orthogonal matrices of entries +-1: Sylvester's doubling of a matrix that Paley's constructions give.

576 = 36 x 16, 960 = 60 x 16, 1536 = 12 x 128: the first factor comes from a prime, the second is a power of two.
Source: Paley, "On Orthogonal Matrices" (1933), constructions I and II.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from octavo.core.errors import InvalidField


def has_hadamard(size: int) -> bool:
    """Whether `hadamard(size)` exists here."""
    return _base(size) is not None


@functools.lru_cache(maxsize=16)
def hadamard(size: int) -> Tensor:
    """A Hadamard matrix: int8 `[size, size]` of +-1 whose rows are orthogonal. Treat it as read-only.

    Raises `InvalidField` for a size that neither construction reaches.
    """
    base = _base(size)
    if base is None:
        expected = "known sizes are 1, 2, q + 1 and 2 (q + 1) for primes q = 3 and q = 1 (mod 4), and their doublings"
        raise InvalidField("hadamard", size, expected)
    matrix = _paley(base)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix


def random_hadamard(size: int, generator: torch.Generator, block: int | None = None) -> Tensor:
    """D H / sqrt(block), orthogonal float64 `[size, size]`; D holds random signs drawn from `generator`.

    H is one Hadamard matrix, or has one for each `block` of consecutive features on its diagonal (MR-GPTQ, Egiazarian
    et al., 2025); `block` divides `size`.
    """
    block = block or size
    signs = torch.randint(2, (size, 1), generator=generator).mul_(2).sub_(1)
    blocks = torch.block_diag(*[hadamard(block)] * (size // block))
    return signs.to(torch.float64) * blocks / block**0.5


def _base(size: int) -> int | None:
    """The smallest size that a construction gives and that doubling takes to `size`."""
    if size < 1:
        return None
    base = size & -size  # the largest power of two in it
    odd = size // base
    if odd == 1:
        return 1
    return next((odd * 2**k for k in range(2, base.bit_length()) if _paley_prime(odd * 2**k) is not None), None)


def _paley_prime(size: int) -> tuple[int, bool] | None:
    """(q, whether construction II) for a matrix of `size`."""
    if (size - 1) % 4 == 3 and _is_prime(size - 1):
        return size - 1, False
    if size % 4 == 0 and (size // 2 - 1) % 4 == 1 and _is_prime(size // 2 - 1):
        return size // 2 - 1, True
    return None


def _paley(size: int) -> Tensor:
    if size == 1:
        return torch.ones(1, 1, dtype=torch.int8)
    found = _paley_prime(size)
    assert found is not None
    prime, second = found
    identity = torch.eye(prime + 1, dtype=torch.int8)
    core = _bordered_characters(prime, antisymmetric=not second)
    if not second:
        return identity + core
    return torch.kron(core, torch.tensor([[1, 1], [1, -1]], dtype=torch.int8)) + torch.kron(
        identity, torch.tensor([[1, -1], [-1, -1]], dtype=torch.int8)
    )


def _bordered_characters(prime: int, antisymmetric: bool) -> Tensor:
    """`[prime + 1, prime + 1]`: a border of ones around chi(i - j), where chi is 1 for squares modulo `prime`, -1 for
    the others and 0 for 0."""
    character = torch.full((prime,), -1, dtype=torch.int8)
    character[torch.arange(1, prime).square() % prime] = 1
    character[0] = 0
    numbers = torch.arange(prime)
    matrix = torch.zeros(prime + 1, prime + 1, dtype=torch.int8)
    matrix[1:, 1:] = character[(numbers[:, None] - numbers) % prime]
    matrix[0, 1:] = 1
    matrix[1:, 0] = -1 if antisymmetric else 1
    return matrix


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1))
