"""What a reader of the interface expects, case by case."""

from __future__ import annotations

import pytest

from octavo.kv.errors import KVCorruption
from octavo.kv.kv_cache import KVCache


def computed(cache: KVCache, sequence_id: int, tokens: list[int], use_cache: bool = True) -> int:
    """Open, reserve, commit; returns the tokens that were cached."""
    num_hit = cache.open(sequence_id, tokens, use_cache)
    assert cache.reserve(sequence_id, len(tokens))
    cache.take_copies()
    cache.commit(sequence_id, tokens)
    cache.check()
    return num_hit


def finished(cache: KVCache, sequence_id: int, tokens: list[int], use_cache: bool = True) -> int:
    num_hit = computed(cache, sequence_id, tokens, use_cache)
    cache.close(sequence_id)
    cache.check()
    return num_hit


@pytest.mark.parametrize(
    ("num_tokens", "num_hit"), [(15, 0), (16, 0), (17, 16), (31, 16), (32, 16), (33, 32), (40, 32)]
)
def test_a_prompt_hits_whole_blocks_and_leaves_a_token_to_compute(num_tokens: int, num_hit: int) -> None:
    cache = KVCache(16, 16)
    finished(cache, 0, list(range(48)))
    assert [finished(cache, 1, list(range(num_tokens))) for _ in range(3)] == [num_hit] * 3


def test_the_longest_prefix_is_found_and_only_the_prefix() -> None:
    cache = KVCache(32, 4)
    finished(cache, 0, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13])
    finished(cache, 1, [1, 2, 3, 4, 50, 60, 70, 80, 90])
    assert cache.open(2, [1, 2, 3, 4, 5, 6, 7, 8, 99, 10, 11, 12, 13]) == 8
    assert cache.open(3, [1, 2, 3, 4, 50, 60, 70, 80, 9, 10, 11, 12, 13]) == 8
    assert cache.open(4, [5, 6, 7, 8, 9, 10, 11, 12, 13]) == 0


def test_statistics_count_lookups_that_were_used() -> None:
    cache = KVCache(8, 4)
    finished(cache, 0, list(range(10)))
    finished(cache, 1, list(range(12)))
    assert (cache.num_queried_tokens, cache.num_hit_tokens) == (22, 8)
    cache.open(2, list(range(12)))
    cache.close(2)  # an admission that found no room
    finished(cache, 3, list(range(12)), use_cache=False)
    assert (cache.num_queried_tokens, cache.num_hit_tokens) == (22, 8)


def test_without_the_cache_nothing_is_looked_up_but_blocks_are_cached() -> None:
    cache = KVCache(8, 4)
    assert finished(cache, 0, list(range(9)), use_cache=False) == 0
    assert finished(cache, 1, list(range(9)), use_cache=False) == 0
    assert cache.num_cached_blocks == 2, "a block computed again takes the place of its unused twin"
    assert finished(cache, 2, list(range(9))) == 8


def test_prefix_caching_can_be_off() -> None:
    cache = KVCache(8, 4, prefix_caching=False)
    assert finished(cache, 0, list(range(9))) == finished(cache, 1, list(range(9))) == 0
    assert (cache.num_free_blocks, cache.num_cached_blocks, cache.num_queried_tokens) == (8, 0, 0)


def test_the_least_recently_used_leaf_goes_first() -> None:
    cache = KVCache(6, 2)
    old, common = [1, 1, 2, 2, 9], [1, 1, 3, 3, 9]
    finished(cache, 0, old)
    finished(cache, 1, common)
    finished(cache, 2, [7, 7, 9])
    assert cache.num_cached_blocks == 4
    finished(cache, 3, old)  # used again: [1, 1, 3, 3] is now the oldest leaf
    assert cache.evict(1) == 1
    assert [finished(cache, 4, tokens) for tokens in ([*common[:4], 5, 5], old, [7, 7, 9])] == [2, 4, 2]


def test_eviction_makes_room_and_used_blocks_stay() -> None:
    cache = KVCache(6, 2)
    finished(cache, 0, [1, 1, 2, 2, 3])
    computed(cache, 1, [1, 1, 5])
    assert (cache.num_free_blocks, cache.num_cached_blocks, cache.num_used_blocks) == (3, 1, 2)
    assert not cache.reserve(1, 13), "the pool has six blocks"
    assert cache.num_evicted_blocks == 0
    assert cache.reserve(1, 12)
    assert (cache.num_evicted_blocks, cache.num_used_blocks) == (1, 6)
    cache.check()


def test_twins_computed_at_the_same_time_are_cached_once() -> None:
    cache = KVCache(16, 2)
    tokens = [1, 1, 2, 2, 3]
    for sequence_id in (0, 1):
        assert cache.open(sequence_id, tokens) == 0
        assert cache.reserve(sequence_id, 5)
    for sequence_id in (0, 1):
        cache.commit(sequence_id, tokens)
    assert not set(cache.block_table(0)) & set(cache.block_table(1))
    cache.close(0)
    cache.check()
    assert (cache.num_cached_blocks, cache.num_used_blocks) == (0, 3), "the second twin's blocks took over"
    assert computed(cache, 2, tokens) == 4
    assert cache.block_table(2).blocks[:2] == cache.block_table(1).blocks[:2]
    cache.close(2)
    cache.close(1)
    cache.check()
    assert (cache.num_cached_blocks, cache.num_free_blocks) == (2, 14)


def test_a_lone_sequence_can_use_the_whole_pool_whatever_is_cached() -> None:
    """Twins of cached blocks must not keep both alive: with prompt log-probabilities a prompt is computed afresh."""
    cache = KVCache(8, 4)
    tokens = list(range(32))
    finished(cache, 0, tokens)
    cache.open(1, tokens, use_cache=False)
    for num_tokens in range(1, 33):
        assert cache.reserve(1, num_tokens)
        cache.commit(1, tokens, num_tokens)
        cache.check()


def test_forks_copy_the_partial_block_only_while_it_is_shared() -> None:
    cache = KVCache(8, 4)
    computed(cache, 0, list(range(6)))
    for child in (1, 2):
        cache.fork(0, child)
    assert cache.num_used_blocks == 2
    assert all(cache.reserve(sequence_id, 7) for sequence_id in (0, 1, 2))
    tables = [cache.block_table(sequence_id) for sequence_id in (0, 1, 2)]
    assert len({table[0] for table in tables}) == 1, "full blocks stay shared"
    assert len({table[1] for table in tables}) == 3
    shared = tables[2][1]  # the last writer keeps the block
    assert cache.take_copies() == [(shared, tables[0][1]), (shared, tables[1][1])]
    cache.check()
    assert cache.num_used_blocks == 4


def test_forks_at_a_block_edge_copy_nothing() -> None:
    cache = KVCache(8, 4)
    computed(cache, 0, list(range(8)))
    cache.fork(0, 1)
    assert cache.reserve(0, 9)
    assert cache.reserve(1, 13)
    assert cache.take_copies() == []
    assert cache.block_table(0).blocks[:2] == cache.block_table(1).blocks[:2]
    assert cache.num_used_blocks == 5


def test_a_copy_whose_writer_left_is_not_made() -> None:
    cache = KVCache(4, 4)
    computed(cache, 0, [1, 2])
    cache.fork(0, 1)
    assert cache.reserve(1, 3)
    cache.close(1)  # preempted in the same step
    cache.open(2, [9])
    assert cache.reserve(2, 12), "the copy's block is free again"
    assert cache.take_copies() == []
    cache.check()


def test_a_copy_survives_its_source() -> None:
    cache = KVCache(4, 4)
    computed(cache, 0, [1, 2])
    (source,) = cache.block_table(0)
    cache.fork(0, 1)
    assert cache.reserve(1, 3)
    cache.close(0)
    cache.open(2, [9])
    assert cache.reserve(2, 8), "two of four blocks are free"
    assert not cache.reserve(2, 9), "the source may not be given away before it is copied"
    assert cache.take_copies() == [(source, cache.block_table(1)[0])]
    cache.check()
    assert cache.num_free_blocks == 1


def test_a_writer_alone_needs_no_copy() -> None:
    cache = KVCache(4, 4)
    computed(cache, 0, [1, 2])
    cache.fork(0, 1)
    cache.close(0)
    table = list(cache.block_table(1))
    assert cache.reserve(1, 4)
    assert (cache.take_copies(), list(cache.block_table(1))) == ([], table)


def test_misuse_is_named() -> None:
    cache = KVCache(4, 4)
    computed(cache, 0, [1, 2])
    with pytest.raises(ValueError, match="sequence 0 is open already"):
        cache.open(0, [1])
    with pytest.raises(ValueError, match="reserved less than 5 tokens"):
        cache.commit(0, [1, 2, 3, 4, 5])
    cache.fork(0, 1)
    assert cache.reserve(1, 3)
    with pytest.raises(ValueError, match="take_copies"):
        cache.commit(1, [1, 2, 3])


def test_the_check_sees_leaks_and_strangers() -> None:
    leaking = KVCache(4, 4)
    computed(leaking, 0, list(range(6)))
    del leaking._sequences[0]
    with pytest.raises(KVCorruption, match="counted"):
        leaking.check()
    strange = KVCache(4, 4)
    computed(strange, 0, list(range(6)))
    strange._sequences[0].table.extend([3])
    with pytest.raises(KVCorruption, match="block 3 has 1 holders"):
        strange.check()
