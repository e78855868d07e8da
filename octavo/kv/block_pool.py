"""Blocks and how many holders each one has."""

from __future__ import annotations

from octavo.kv.errors import KVCorruption


class BlockPool:
    """`num_blocks` block ids with reference counts; every operation is O(1).

    A block is free (count 0) or held by `reference_count` holders. The pool does not know who they are.

        allocate()        retain() / release()          release()
      free ------> held by one <-----> held by several ... ------> free again

    Owns: the counts and the list of free blocks. Does not own: contents, tables, the radix tree, eviction.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._reference_counts = [0] * num_blocks
        self._free_blocks = list(range(num_blocks - 1, -1, -1))  # a stack, lowest id on top

    @property
    def num_free_blocks(self) -> int:
        return len(self._free_blocks)

    def reference_count(self, block: int) -> int:
        return self._reference_counts[block]

    def allocate(self) -> int:
        """A free block, now held once. Raises `KVCorruption` if none is free (callers look before they ask)."""
        if not self._free_blocks:
            raise KVCorruption(f"allocate: none of {self.num_blocks} blocks is free")
        block = self._free_blocks.pop()
        self._reference_counts[block] = 1
        return block

    def retain(self, block: int) -> None:
        """One more holder. Raises `KVCorruption` for a free block: its contents are nobody's."""
        if self._reference_counts[block] == 0:
            raise KVCorruption(f"retain: block {block} is free")
        self._reference_counts[block] += 1

    def release(self, block: int) -> int:
        """One holder less; returns how many are left, 0 meaning free now. Raises `KVCorruption` if it was free."""
        count = self._reference_counts[block] - 1
        if count < 0:
            raise KVCorruption(f"release: block {block} is free already")
        self._reference_counts[block] = count
        if count == 0:
            self._free_blocks.append(block)
        return count

    def check(self) -> None:
        """Raise `KVCorruption` unless exactly the blocks without holders are in the free list, once each. O(pool)."""
        unheld = [block for block, count in enumerate(self._reference_counts) if count == 0]
        if sorted(self._free_blocks) != unheld:
            raise KVCorruption(f"free list {sorted(self._free_blocks)} but blocks without holders are {unheld}")
