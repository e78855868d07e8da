"""The prefix cache: a radix tree whose alphabet is whole blocks of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush

from octavo.kv.errors import KVCorruption

_MIN_HEAP_ENTRIES = 64


class Node:
    """One full block of tokens after its parent's tokens.

    `block` holds their keys and values. `duplicates` are further blocks with the same content: sequences that
    computed the same tokens at the same time each keep the block they wrote, since tables are append-only.
    `idle_since` is 0 while a sequence uses the node, otherwise the tick at which the last one left.
    """

    __slots__ = ("block", "children", "duplicates", "idle_since", "key", "parent")

    def __init__(self, parent: Node | None, key: tuple[int, ...], block: int) -> None:
        self.parent = parent
        self.key = key
        self.block = block
        self.children: dict[tuple[int, ...], Node] = {}
        self.duplicates: set[int] = set()
        self.idle_since = 0


class RadixTree:
    """Maps token prefixes to blocks and knows which leaf was used least recently.

    One edge is one block, so a sequence keeps its node as a cursor: extending it is O(1) and nodes never split.
    A sequence that uses a node uses all its ancestors; idle nodes are therefore closed downwards, and every idle
    node can be evicted, leaves first. Order is kept in a heap with lazy deletion: O(log nodes) per eviction.

    Owns: nodes, their order of use. Does not own: reference counts and who the users are (`KVCache` tells).
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.root = Node(None, (), -1)
        self.num_idle_nodes = 0
        self._node_of_block: dict[int, Node] = {}
        self._num_nodes = 0
        self._tick = 0
        self._idle_leaves: list[tuple[int, Node]] = []  # heap of (idle_since, node); stale once idle_since differs

    def node_of(self, block: int) -> Node | None:
        """The node whose block or duplicate this is."""
        return self._node_of_block.get(block)

    def match(self, tokens: Sequence[int], max_blocks: int) -> list[Node]:
        """Nodes of the longest known prefix of `tokens`, at most `max_blocks` of them, from the root down."""
        nodes: list[Node] = []
        node: Node | None = self.root
        for start in range(0, max_blocks * self.block_size, self.block_size):
            assert node is not None
            node = node.children.get(tuple(tokens[start : start + self.block_size]))
            if node is None:
                break
            nodes.append(node)
        return nodes

    def child(self, parent: Node, key: tuple[int, ...]) -> Node | None:
        return parent.children.get(key)

    def insert(self, parent: Node, key: tuple[int, ...], block: int) -> Node:
        """A new node in use."""
        node = Node(parent, key, block)
        parent.children[key] = node
        self._node_of_block[block] = node
        self._num_nodes += 1
        return node

    def add_duplicate(self, node: Node, block: int) -> None:
        node.duplicates.add(block)
        self._node_of_block[block] = node

    def drop_duplicate(self, node: Node, block: int) -> None:
        node.duplicates.remove(block)
        del self._node_of_block[block]

    def replace_block(self, node: Node, block: int) -> int:
        """Let `block` (equal content; a duplicate or new) stand for the node; returns the block it stood for."""
        replaced = node.block
        del self._node_of_block[replaced]
        node.duplicates.discard(block)
        node.block = block
        self._node_of_block[block] = node
        return replaced

    def mark_used(self, node: Node) -> None:
        if node.idle_since:
            node.idle_since = 0
            self.num_idle_nodes -= 1

    def mark_idle(self, node: Node) -> None:
        """The last user left. Call from the deepest node up, so that parents count as used more recently."""
        self._tick += 1
        node.idle_since = self._tick
        self.num_idle_nodes += 1
        if not node.children:
            self._push(node)

    def evict(self) -> int | None:
        """Remove the idle leaf used least recently; returns its block, or None if nothing is idle."""
        while self._idle_leaves:
            idle_since, node = heappop(self._idle_leaves)
            if node.idle_since == idle_since and not node.children:
                self._remove(node)
                return node.block
        return None

    def nodes(self) -> Iterator[Node]:
        """Every node but the root, parents first."""
        pending = list(self.root.children.values())
        while pending:
            node = pending.pop()
            yield node
            pending.extend(node.children.values())

    def check(self) -> None:
        """Raise `KVCorruption` unless links, block map, idle counts and heap agree. O(nodes)."""
        nodes = list(self.nodes())
        node_of_block = {block: node for node in nodes for block in (node.block, *node.duplicates)}
        current = {id(node) for idle_since, node in self._idle_leaves if node.idle_since == idle_since}
        if len(nodes) != self._num_nodes or node_of_block != self._node_of_block:
            raise KVCorruption(f"radix tree: {len(nodes)} nodes, {self._num_nodes} counted, or the block map is wrong")
        if sum(bool(node.idle_since) for node in nodes) != self.num_idle_nodes:
            raise KVCorruption(f"radix tree: {self.num_idle_nodes} idle nodes counted, which is wrong")
        for node in nodes:
            if node.parent is None or node.parent.children.get(node.key) is not node:
                raise KVCorruption(f"radix tree: node of block {node.block} is not its parent's child")
            if node.parent.idle_since and not node.idle_since:
                raise KVCorruption(f"radix tree: block {node.block} is in use but its parent is idle")
            if node.idle_since and not node.children and id(node) not in current:
                raise KVCorruption(f"radix tree: idle leaf of block {node.block} can never be evicted")

    def _remove(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        del parent.children[node.key]
        del self._node_of_block[node.block]
        node.idle_since = 0
        self._num_nodes -= 1
        self.num_idle_nodes -= 1
        if parent.idle_since and not parent.children:
            self._push(parent)

    def _push(self, leaf: Node) -> None:
        # Reused leaves leave stale entries behind; sweeping at twice the useful size costs O(1) per push on average.
        if len(self._idle_leaves) > 2 * self._num_nodes + _MIN_HEAP_ENTRIES:
            self._idle_leaves = [
                (tick, node) for tick, node in self._idle_leaves if node.idle_since == tick and not node.children
            ]
            heapify(self._idle_leaves)
        heappush(self._idle_leaves, (leaf.idle_since, leaf))
