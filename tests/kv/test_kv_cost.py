"""Work per operation must not grow with the pool: serving slows down under exactly the load that fills it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from octavo.kv.kv_cache import KVCache

BLOCK_SIZE = 4
NUM_BLOCKS_SMALL, NUM_BLOCKS_LARGE = 1_000, 100_000


def full_cache(num_blocks: int) -> KVCache:
    """Every block is cached and idle, in prompts of four blocks that share their first one by tens."""
    cache = KVCache(num_blocks, BLOCK_SIZE)
    for number in range(num_blocks // 3):
        run_one(cache, number)
    assert cache.num_free_blocks < 5
    return cache


def run_one(cache: KVCache, number: int) -> None:
    tokens = [number // 10] * BLOCK_SIZE + [number] * (3 * BLOCK_SIZE)
    cache.open(number, tokens)
    assert cache.reserve(number, len(tokens))
    cache.commit(number, tokens)
    cache.close(number)


def churn(cache: KVCache, first: int) -> Callable[[], None]:
    def run() -> None:
        for number in range(first, first + 300):
            run_one(cache, number)

    return run


def lines_executed(work: Callable[[], None]) -> int:
    """Python lines run by `work`: a cost without a clock."""
    count = 0

    def trace(frame: object, event: str, argument: object) -> Callable[..., object]:
        nonlocal count
        count += event == "line"
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(previous)
    return count


def seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def test_cost_does_not_grow_with_the_pool() -> None:
    small, large = full_cache(NUM_BLOCKS_SMALL), full_cache(NUM_BLOCKS_LARGE)
    assert lines_executed(churn(large, 10**6)) < 1.5 * lines_executed(churn(small, 10**6))
    rounds = range(1, 6)
    small_seconds = min(seconds(churn(small, 10**6 * (1 + n))) for n in rounds)
    large_seconds = min(seconds(churn(large, 10**6 * (1 + n))) for n in rounds)
    # log2(1e5) / log2(1e3) is 1.7; colder memory takes the rest. A linear operation would show a factor of 100.
    assert large_seconds < 6 * small_seconds
    large.check()


def test_reusing_one_prefix_for_ever_does_not_grow_the_eviction_order() -> None:
    cache = KVCache(64, BLOCK_SIZE)
    for number in range(5_000):
        cache.open(number, [1] * 9)
        assert cache.reserve(number, 9)
        cache.commit(number, [1] * 9)
        cache.close(number)
    assert len(cache._tree._idle_leaves) < 500
    cache.check()
