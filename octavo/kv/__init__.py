"""Where past tokens live: block pool, block tables, radix tree, fork. No torch: block ids, never their contents.

| | owns | does not own |
|---|---|---|
| `BlockPool` | reference counts, the free list | who holds a block, what is in it |
| `RadixTree` | which full blocks follow which, order of use | reference counts, sequences |
| `KVCache` | block tables, fork and copy on write, eviction, hit statistics | requests, token budgets, tensors |

Keys and values themselves belong to an executor (`octavo.ops`); which sequence runs, and who gives way when blocks
run out, belongs to the scheduler (`octavo.engine`). Read `block_pool`, `radix_tree`, `kv_cache`, in this order.
"""
