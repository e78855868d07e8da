"""Every order of operations keeps every block accounted for and every table's contents right."""

from __future__ import annotations

from dataclasses import dataclass

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from octavo.kv.kv_cache import KVCache
from tests.kv.content_store import ContentStore

MAX_OPEN = 6
#: Two letters and three beginnings, so that prefixes meet all the time.
TOKENS = st.builds(
    lambda beginning, rest: [*beginning, *rest],
    st.sampled_from([[], [1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0, 0]]),
    st.lists(st.integers(0, 1), min_size=1, max_size=6),
)


@dataclass
class Model:
    tokens: list[int]
    num_computed: int


class KVCacheMachine(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.integers(6, 40),
        block_size=st.sampled_from([3, 4, 2, 1]),
        prefix_caching=st.sampled_from([True, True, False]),
    )
    def build(self, num_blocks: int, block_size: int, prefix_caching: bool) -> None:
        self.cache = KVCache(num_blocks, block_size, prefix_caching)
        self.store = ContentStore(num_blocks, block_size)
        self.open_sequences: dict[int, Model] = {}
        self.planned: dict[int, int] = {}  # sequence id -> tokens that will be computed after the next step
        self.copies_may_be_pending = False
        self.copies: dict[int, list[int]] = {}  # what a reader keeps of each table, by epoch
        self.next_id = 0

    def new_id(self) -> int:
        self.next_id += 1
        return self.next_id

    def pick(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.open_sequences)))

    def computed(self) -> list[int]:
        return sorted(sequence_id for sequence_id, model in self.open_sequences.items() if model.num_computed)

    @precondition(lambda self: len(self.open_sequences) < MAX_OPEN)
    @rule(data=st.data(), tokens=TOKENS, use_cache=st.sampled_from([True, True, True, False]))
    def open(self, data: st.DataObject, tokens: list[int], use_cache: bool) -> None:
        """And reserve, as the scheduler does."""
        sequence_id = self.new_id()
        num_hit = self.cache.open(sequence_id, tokens, use_cache)
        assert num_hit % self.cache.block_size == 0
        assert num_hit <= len(tokens) - 1
        assert num_hit == 0 or (use_cache and self.cache.prefix_caching)
        self.open_sequences[sequence_id] = Model(tokens, num_hit)
        self.reserve(sequence_id, len(tokens))
        self.maybe_compute(data)

    @precondition(lambda self: self.open_sequences)
    @rule(
        data=st.data(), more=st.lists(st.integers(0, 1), min_size=1, max_size=5), num_left=st.sampled_from([0, 0, 1, 3])
    )
    def grow(self, data: st.DataObject, more: list[int], num_left: int) -> None:
        """The next step will compute tokens of this sequence. Forks, closings and evictions may come between."""
        sequence_id = self.pick(data)
        model = self.open_sequences[sequence_id]
        model.tokens.extend(more)
        self.reserve(sequence_id, max(len(model.tokens) - num_left, model.num_computed))
        self.maybe_compute(data)

    def state(self, sequence_id: int) -> tuple[list[int], int, int]:
        table = self.cache.block_table(sequence_id)
        return list(table), self.cache.num_free_blocks, self.cache.num_cached_blocks

    def reserve(self, sequence_id: int, num_tokens: int) -> None:
        cache = self.cache
        before = self.state(sequence_id)
        num_missing = max(cache.num_blocks_for(num_tokens) - len(before[0]), 0)
        if cache.reserve(sequence_id, num_tokens):
            assert len(cache.block_table(sequence_id)) * cache.block_size >= num_tokens
            assert cache.reserve(sequence_id, num_tokens), "repeating a reservation costs nothing"
            self.planned[sequence_id] = num_tokens
            self.copies_may_be_pending = True
            return
        assert before == self.state(sequence_id)
        assert num_missing + 1 > cache.num_free_blocks + cache.num_cached_blocks, "refused although there was room"

    def maybe_compute(self, data: st.DataObject) -> None:
        """Half of the time at once: a step is the end of most stories, and hypothesis likes to leave rules out."""
        if self.copies_may_be_pending and data.draw(st.booleans()):
            self.compute_now(data)

    @precondition(lambda self: self.copies_may_be_pending)
    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        self.compute_now(data)

    def compute_now(self, data: st.DataObject) -> None:
        """The step: copies in any order, then writes, then commits."""
        copies = self.cache.take_copies()
        assert self.cache.take_copies() == []
        targets = [target for _, target in copies]
        assert len(set(targets)) == len(targets)
        assert not set(targets) & {source for source, _ in copies}
        self.store.copy(data.draw(st.permutations(copies)) if len(copies) > 1 else copies)
        for sequence_id, num_tokens in self.planned.items():
            model = self.open_sequences[sequence_id]
            num_tokens = max(num_tokens, model.num_computed)
            self.store.write(self.cache.block_table(sequence_id), model.tokens, model.num_computed, num_tokens)
            model.num_computed = num_tokens
        for sequence_id in self.planned:
            model = self.open_sequences[sequence_id]
            self.cache.commit(sequence_id, model.tokens[: model.num_computed])
        self.planned = {}
        self.copies_may_be_pending = False

    @precondition(lambda self: self.computed())
    @rule(data=st.data())
    def commit_again(self, data: st.DataObject) -> None:
        sequence_id = data.draw(st.sampled_from(self.computed()))
        model = self.open_sequences[sequence_id]
        counts = (self.cache.num_free_blocks, self.cache.num_cached_blocks)
        self.cache.commit(sequence_id, model.tokens, data.draw(st.integers(0, model.num_computed)))
        assert counts == (self.cache.num_free_blocks, self.cache.num_cached_blocks)

    @precondition(lambda self: self.computed() and len(self.open_sequences) < MAX_OPEN)
    @rule(data=st.data(), writers=st.sampled_from([(), ("child",), ("parent", "child"), ("child", "parent")]))
    def fork(self, data: st.DataObject, writers: tuple[str, ...]) -> None:
        """Nobody, or one, or both go on at once."""
        parent_id, child_id = data.draw(st.sampled_from(self.computed())), self.new_id()
        free = self.cache.num_free_blocks
        self.cache.fork(parent_id, child_id)
        assert self.cache.num_free_blocks == free, "a fork costs no block until somebody writes"
        parent = self.open_sequences[parent_id]
        self.open_sequences[child_id] = Model(parent.tokens[: parent.num_computed], parent.num_computed)
        for writer in writers:
            sequence_id = child_id if writer == "child" else parent_id
            model = self.open_sequences[sequence_id]
            model.tokens.append(data.draw(st.integers(0, 1)))
            self.reserve(sequence_id, len(model.tokens))
        self.maybe_compute(data)

    @precondition(lambda self: len(self.open_sequences) > 2)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        """Possibly after it reserved: the scheduler preempts within a step."""
        sequence_id = self.pick(data)
        self.cache.close(sequence_id)
        del self.open_sequences[sequence_id]
        self.planned.pop(sequence_id, None)

    @precondition(lambda self: self.cache.num_cached_blocks)
    @rule(num_blocks=st.integers(1, 4))
    def evict(self, num_blocks: int) -> None:
        free, cached = self.cache.num_free_blocks, self.cache.num_cached_blocks
        num_evicted = self.cache.evict(num_blocks)
        assert num_evicted == min(num_blocks, cached)
        assert self.cache.num_free_blocks == free + num_evicted

    @invariant()
    def every_block_is_accounted_for(self) -> None:
        if not hasattr(self, "cache"):
            return
        cache = self.cache
        cache.check()
        assert cache.num_free_blocks + cache.num_cached_blocks + cache.num_used_blocks == cache.num_blocks
        if self.copies_may_be_pending:
            return
        tables = [cache.block_table(sequence_id) for sequence_id in self.open_sequences]
        assert cache.num_used_blocks == len({block for table in tables for block in table})

    @invariant()
    def tables_hold_exactly_the_tokens(self) -> None:
        if getattr(self, "copies_may_be_pending", True):
            return
        for sequence_id, model in self.open_sequences.items():
            held = self.store.read(self.cache.block_table(sequence_id), model.num_computed)
            assert list(held) == model.tokens[: model.num_computed]

    @invariant()
    def tables_only_grow_within_an_epoch(self) -> None:
        """A reader that appends what is new while the epoch stays never has a wrong copy."""
        for sequence_id in getattr(self, "open_sequences", ()):
            table = self.cache.block_table(sequence_id)
            kept = self.copies.setdefault(table.epoch, [])
            kept.extend(table.blocks[len(kept) :])
            assert kept == table.blocks

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        for sequence_id in self.open_sequences:
            self.cache.close(sequence_id)
        self.cache.check()
        self.cache.evict()
        assert self.cache.num_free_blocks == self.cache.num_blocks


TestKVCacheMachine = KVCacheMachine.TestCase
TestKVCacheMachine.settings = settings(
    max_examples=120, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
