"""Block tables of running sequences over one pool, sharing what they have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from octavo.core.block_table import BlockTable
from octavo.kv.block_pool import BlockPool
from octavo.kv.errors import KVCorruption
from octavo.kv.radix_tree import Node, RadixTree


@dataclass(slots=True)
class _OpenSequence:
    """What the cache knows of a sequence: its table, how far it is computed, and its place in the radix tree."""

    table: BlockTable
    num_tokens: int  # computed (committed) tokens
    num_indexed_blocks: int  # leading full blocks that have a node
    node: Node  # of the last of them
    lookup: tuple[int, int] | None  # (tokens queried, tokens hit), until the first commit counts them
    num_writable_tokens: int = 0  # positions known to be covered and safe to write; 0 after a fork: look again


class KVCache:
    """Keeps `num_blocks` blocks of `block_size` token positions busy.

    Where memory changes hands (counts are table references + 1 for the radix tree + pending copies):

                     reserve                   commit, block is full
        free list -----------> in a table ------------------------------> in a table and in the tree
            ^    count 0 -> 1      |    ^                count + 1            |           ^
            |                      |    | fork: + 1                           | close     | open, prefix matches:
            |     close, partial   |    | (last block partial: reserve        |  - 1      |   + 1
            |<---------------------+      gives the writer a copy)            v           |
            |                                                             in the tree only ("cached", count 1)
            |                    evict, least recently used leaf              |
            +-----------------------------------------------------------------+

    Two sequences that compute the same block at the same time both keep their own (tables only grow); the second
    is the node's duplicate: freed at close, or taking the first one's place when that has no user left.

    Calls of one sequence: `open` or `fork`, then any number of `reserve` -> compute -> `commit`, then `close`. Every
    operation costs O(log blocks) per block it touches. Not thread safe: one engine loop owns it.

    Owns: tables, counts, the tree, statistics. Does not own: contents. Whoever computes must do `take_copies()`
    first, in the same step.
    """

    def __init__(self, num_blocks: int, block_size: int, prefix_caching: bool = True) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self.num_queried_tokens = 0
        self.num_hit_tokens = 0
        self.num_evicted_blocks = 0
        self._pool = BlockPool(num_blocks)
        self._tree = RadixTree(block_size)
        self._sequences: dict[int, _OpenSequence] = {}
        self._copy_source: dict[int, int] = {}  # target -> source, until take_copies
        self._num_copies_from: Counter[int] = Counter()  # source -> references held for pending copies

    @property
    def num_free_blocks(self) -> int:
        return self._pool.num_free_blocks

    @property
    def num_cached_blocks(self) -> int:
        """Blocks that only the radix tree holds: evictable, so as good as free."""
        return self._tree.num_idle_nodes

    @property
    def num_used_blocks(self) -> int:
        """Blocks that sequences hold; shared ones count once."""
        return self.num_blocks - self.num_free_blocks - self.num_cached_blocks

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def open(self, sequence_id: int, tokens: Sequence[int], use_cache: bool = True) -> int:
        """Start a table with the longest cached prefix of `tokens`; returns how many tokens that is.

        Whole blocks only and at most `len(tokens) - 1` tokens, so that at least one is left to compute.
        `use_cache=False` starts with an empty table (what it computes is cached all the same).
        """
        self._must_be_new(sequence_id)
        looks_up = self.prefix_caching and use_cache
        nodes = self._tree.match(tokens, max(len(tokens) - 1, 0) // self.block_size) if looks_up else []
        for node in nodes:
            self._pool.retain(node.block)
            self._tree.mark_used(node)
        num_hit_tokens = len(nodes) * self.block_size
        self._sequences[sequence_id] = _OpenSequence(
            table=BlockTable(node.block for node in nodes),
            num_tokens=num_hit_tokens,
            num_indexed_blocks=len(nodes),
            node=nodes[-1] if nodes else self._tree.root,
            lookup=(len(tokens), num_hit_tokens) if looks_up else None,
        )
        return num_hit_tokens

    def reserve(self, sequence_id: int, num_tokens: int) -> bool:
        """Make the table cover positions `[0, num_tokens)` and the uncomputed ones among them safe to write.

        Evicts as needed. False, with nothing changed, if there are not enough blocks. If the last, partial block is
        shared with a fork, the sequence gets its own one and `take_copies` will name the pair.
        """
        sequence = self._sequences[sequence_id]
        if num_tokens <= sequence.num_writable_tokens:
            return True
        num_new = max(self.num_blocks_for(num_tokens) - len(sequence.table), 0)
        must_copy = num_tokens > sequence.num_tokens and self._shares_partial_block(sequence)
        if num_new + must_copy > self.num_free_blocks + self.num_cached_blocks:
            return False
        if must_copy:
            self._unshare_partial_block(sequence)
        if num_new:
            sequence.table.extend([self._allocate() for _ in range(num_new)])
        if num_tokens > sequence.num_tokens:  # otherwise sharing was not looked at
            sequence.num_writable_tokens = len(sequence.table) * self.block_size
        return True

    def commit(self, sequence_id: int, tokens: Sequence[int], num_tokens: int | None = None) -> None:
        """`tokens[:num_tokens]` (default: all) are computed now; newly full blocks enter the radix tree.

        Repeating a commit, or committing fewer tokens than before, changes nothing. Raises `ValueError` if the table
        does not cover them or pending copies were not taken.
        """
        num_tokens = len(tokens) if num_tokens is None else num_tokens
        sequence, block_size = self._sequences[sequence_id], self.block_size
        if num_tokens > len(sequence.table) * block_size:
            raise ValueError(f"commit: sequence {sequence_id} has reserved less than {num_tokens} tokens")
        if num_tokens <= sequence.num_tokens:
            return
        if self._copy_source:
            raise ValueError("commit: take_copies was not called in this step, so what was computed is wrong")
        sequence.num_tokens = num_tokens
        if sequence.lookup is not None:
            self._count_lookup(sequence)
        if self.prefix_caching and num_tokens >= (sequence.num_indexed_blocks + 1) * block_size:
            for index in range(sequence.num_indexed_blocks, num_tokens // block_size):
                key = tuple(tokens[index * block_size : (index + 1) * block_size])
                sequence.node = self._index(sequence.node, key, sequence.table.blocks[index])
                sequence.num_indexed_blocks = index + 1

    def fork(self, parent_id: int, child_id: int) -> None:
        """The child shares every computed token of the parent; blocks reserved beyond them stay the parent's."""
        self._must_be_new(child_id)
        parent = self._sequences[parent_id]
        parent.num_writable_tokens = 0
        blocks = parent.table.blocks[: self.num_blocks_for(parent.num_tokens)]
        for block in blocks:
            self._pool.retain(block)
        self._sequences[child_id] = _OpenSequence(
            BlockTable(blocks), parent.num_tokens, parent.num_indexed_blocks, parent.node, lookup=None
        )

    def close(self, sequence_id: int) -> None:
        """Forget the sequence. Its full blocks stay cached until evicted, all others are free at once."""
        for block in reversed(self._sequences.pop(sequence_id).table.blocks):
            self._release(block)

    def block_table(self, sequence_id: int) -> BlockTable:
        """The living table, to be read only: `table[p // block_size]` holds position `p`."""
        return self._sequences[sequence_id].table

    def take_copies(self) -> list[tuple[int, int]]:
        """`(source, target)` block pairs to be copied before anything is computed; cleared by the call.

        No block is both source and target, and no target appears twice: any order, or all at once, is right.
        """
        if not self._copy_source:
            return []
        pairs = [(source, target) for target, source in self._copy_source.items()]
        self._copy_source.clear()
        for source, _ in pairs:
            self._release_copy_source(source)
        return pairs

    def evict(self, num_blocks: int | None = None) -> int:
        """Free up to `num_blocks` (default: all) cached blocks, least recently used first; returns how many."""
        limit = self.num_cached_blocks if num_blocks is None else min(num_blocks, self.num_cached_blocks)
        for _ in range(limit):
            self._evict_one()
        return limit

    def check(self) -> None:
        """Raise `KVCorruption` unless every block is free, referenced or cached, exactly once. O(pool).

        Each count must equal the tables, the node and the pending copies that hold the block; a node is idle exactly
        if only the tree holds it; a table covers its computed tokens.
        """
        self._pool.check()
        self._tree.check()
        holders = Counter(block for sequence in self._sequences.values() for block in sequence.table)
        in_tables = set(holders)
        holders.update(self._num_copies_from)
        holders.update(node.block for node in self._tree.nodes())
        for block in range(self.num_blocks):
            if holders[block] != self._pool.reference_count(block):
                count = self._pool.reference_count(block)
                raise KVCorruption(f"block {block} has {holders[block]} holders but is counted {count} times")
        for node in self._tree.nodes():
            if bool(node.idle_since) != (holders[node.block] == 1) or not node.duplicates <= in_tables:
                raise KVCorruption(f"block {node.block}: idle mark or duplicates {node.duplicates} are wrong")
        for sequence_id, sequence in self._sequences.items():
            if self.num_blocks_for(sequence.num_tokens) > len(sequence.table):
                raise KVCorruption(f"sequence {sequence_id}: table is shorter than its {sequence.num_tokens} tokens")

    def _must_be_new(self, sequence_id: int) -> None:
        if sequence_id in self._sequences:
            raise ValueError(f"sequence {sequence_id} is open already")

    def _count_lookup(self, sequence: _OpenSequence) -> None:
        """Statistics count lookups that led to work, not admissions that failed for lack of blocks."""
        assert sequence.lookup is not None
        self.num_queried_tokens += sequence.lookup[0]
        self.num_hit_tokens += sequence.lookup[1]
        sequence.lookup = None

    def _allocate(self) -> int:
        if not self._pool.num_free_blocks:
            self._evict_one()
        return self._pool.allocate()

    def _evict_one(self) -> None:
        block = self._tree.evict()
        if block is None:
            raise KVCorruption(f"{self.num_cached_blocks} blocks are counted as cached, but no leaf can be evicted")
        self._pool.release(block)
        self.num_evicted_blocks += 1

    def _index(self, parent: Node, key: tuple[int, ...], block: int) -> Node:
        """The node of a block that just became full: new, taken over from an unused twin, or shared as duplicate."""
        node = self._tree.child(parent, key)
        if node is None:
            self._pool.retain(block)
            return self._tree.insert(parent, key, block)
        if node.idle_since:
            self._tree.mark_used(node)
            self._replace_block(node, block)
        else:
            self._tree.add_duplicate(node, block)
        return node

    def _replace_block(self, node: Node, block: int) -> None:
        self._pool.retain(block)
        self._pool.release(self._tree.replace_block(node, block))

    def _release(self, block: int) -> None:
        """A table lets go of a block."""
        count = self._pool.release(block)
        node = self._tree.node_of(block)
        if node is None:
            if count == 0 and block in self._copy_source:  # the writer left before the copy was made
                self._release_copy_source(self._copy_source.pop(block))
        elif block in node.duplicates:
            if count == 0:
                self._tree.drop_duplicate(node, block)
        elif count == 1:
            if node.duplicates:
                self._replace_block(node, next(iter(node.duplicates)))
            else:
                self._tree.mark_idle(node)

    def _shares_partial_block(self, sequence: _OpenSequence) -> bool:
        """Whether the block that holds the next position has tokens in it and another table refers to it too."""
        if sequence.num_tokens % self.block_size == 0:
            return False
        block = sequence.table.blocks[sequence.num_tokens // self.block_size]
        # A pending copy reads the block before this step writes to it, so it does not count.
        return self._pool.reference_count(block) - self._num_copies_from[block] > 1

    def _unshare_partial_block(self, sequence: _OpenSequence) -> None:
        index = sequence.num_tokens // self.block_size
        shared, own = sequence.table.blocks[index], self._allocate()
        source = self._copy_source.get(shared, shared)  # not copied itself yet: read where it will be read from
        self._pool.retain(source)  # so that the contents survive until the copy is made
        self._num_copies_from[source] += 1
        self._copy_source[own] = source
        sequence.table.replace(index, own)
        self._release(shared)

    def _release_copy_source(self, source: int) -> None:
        self._num_copies_from[source] -= 1
        if not self._num_copies_from[source]:
            del self._num_copies_from[source]
        self._release(source)
