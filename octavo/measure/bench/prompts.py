"""Token-id prompts that no cache has seen: drawn anew each time, from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence

from octavo.core.errors import InvalidField


class PromptSource:
    """Draws prompts from `token_ids` (ids that are no control tokens). The same seed gives the same prompts."""

    def __init__(self, token_ids: Sequence[int], seed: int | str) -> None:
        if not token_ids:
            raise InvalidField("vocabulary", 0, "a model needs at least one token that is no control token")
        self._token_ids = token_ids
        self._random = random.Random(seed)

    def prompt(self, num_tokens: int) -> list[int]:
        return self._random.choices(self._token_ids, k=num_tokens)

    def distinct(self, count: int, num_tokens: int) -> list[list[int]]:
        """`count` prompts of `num_tokens` tokens that have nothing to do with one another."""
        return [self.prompt(num_tokens) for _ in range(count)]

    def with_shared_prefix(self, count: int, num_shared: int, num_own: int) -> list[list[int]]:
        """`count` prompts that begin with the same `num_shared` new tokens."""
        prefix = self.prompt(num_shared)
        return [prefix + own for own in self.distinct(count, num_own)]


def ordinary_token_ids(vocab_size: int, special_ids: frozenset[int]) -> list[int]:
    """All ids of a vocabulary that are no control tokens."""
    return [token for token in range(vocab_size) if token not in special_ids]
