"""What an executor's KV storage would hold, as plain data, so that wrong block tables show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class ContentStore:
    """`slots[block][offset]` is the whole token prefix whose last token was computed there.

    A real key/value depends on all tokens before it, so the prefix is exactly what may be found in a slot.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.slots: list[list[tuple[int, ...] | None]] = [[None] * block_size for _ in range(num_blocks)]

    def copy(self, pairs: Iterable[tuple[int, int]]) -> None:
        for source, target in pairs:
            self.slots[target] = list(self.slots[source])

    def write(self, table: Sequence[int], tokens: Sequence[int], start: int, end: int) -> None:
        """Compute `tokens[start:end]`, reading everything before `start` through the table."""
        prefix = self.read(table, start)
        for position in range(start, end):
            prefix = (*prefix, tokens[position])
            self.slots[table[position // self.block_size]][position % self.block_size] = prefix

    def read(self, table: Sequence[int], num_tokens: int) -> tuple[int, ...]:
        """The tokens found through the table; asserts that every slot stands for the same history."""
        prefix: tuple[int, ...] = ()
        for position in range(num_tokens):
            found = self.slots[table[position // self.block_size]][position % self.block_size]
            assert found is not None, f"position {position}: never computed"
            assert found[:-1] == prefix, f"position {position}: holds {found}, but what precedes is {prefix}"
            prefix = found
        return prefix
