"""Counts of holders, and the free list they imply."""

from __future__ import annotations

import pytest

from octavo.kv.block_pool import BlockPool
from octavo.kv.errors import KVCorruption


def test_a_block_is_free_again_when_its_last_holder_leaves() -> None:
    pool = BlockPool(2)
    block = pool.allocate()
    pool.retain(block)
    assert pool.release(block) == 1
    assert pool.num_free_blocks == 1
    assert pool.release(block) == 0
    assert pool.num_free_blocks == 2
    pool.check()


def test_every_block_is_handed_out_once() -> None:
    pool = BlockPool(5)
    assert sorted(pool.allocate() for _ in range(5)) == [0, 1, 2, 3, 4]
    with pytest.raises(KVCorruption, match="none of 5"):
        pool.allocate()


def test_freeing_twice_and_holding_a_free_block_are_refused() -> None:
    pool = BlockPool(2)
    block = pool.allocate()
    pool.release(block)
    with pytest.raises(KVCorruption, match="free already"):
        pool.release(block)
    with pytest.raises(KVCorruption, match="is free"):
        pool.retain(block)
    pool.check()


def test_the_check_sees_a_block_listed_free_twice() -> None:
    pool = BlockPool(3)
    pool._free_blocks.append(1)
    with pytest.raises(KVCorruption, match="free list"):
        pool.check()
