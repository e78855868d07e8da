"""The reference executor: torch, eager, on the CPU; the oracle of every other executor.

Owns: the meaning of each op in torch, paged storage of keys and values, and the house's first promise on this
device: a row's bits depend on nothing but its own sequence.
Does not own: sampling, scheduling, which blocks belong to whom.

How the promise is kept (measured with torch 2.13 and MKL; `tests/ops` holds it):
* A matrix product's row has the same bits for every number of rows that is a multiple of 4, and other bits for 1 to 3
  rows. So rows are padded, and the tile sizes used are those that agree on this machine (`tiles.py`).
* Attention visits keys in tiles cut at fixed absolute positions, in position order; a tile that a query does not see
  leaves its running maximum, sum and output exactly as they were.
* `silu`, `sigmoid` and `gelu` round differently in the last elements of a tensor than elsewhere; `exp` and `tanh` do
  not. So activations are written with the latter.
"""
