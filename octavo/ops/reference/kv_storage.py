"""Where keys and values of past tokens lie: blocks of a fixed number of positions, for each layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from octavo.ops.base import Attention


class KVStorage:
    """Keys and values, each `[num_blocks * block_size + 1, kv_heads, head_dim]` for every layer.

    ```
    slot = block_table[position // block_size] * block_size + position % block_size
    ```
    The last slot stays zero: it stands for positions that a sequence does not have. All pages are touched when the
    storage is made, so that the process's size does not grow later.
    """

    def __init__(
        self, layers: Sequence[Attention], num_blocks: int, block_size: int, dtype: torch.dtype = torch.float32
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.dtype = dtype
        self.zero_slot = num_blocks * block_size
        shapes = [(self.zero_slot + 1, layer.num_kv_heads, layer.head_dim) for layer in layers]
        self._keys = [torch.empty(shape, dtype=dtype).zero_() for shape in shapes]
        self._values = [torch.empty(shape, dtype=dtype).zero_() for shape in shapes]

    @staticmethod
    def bytes_per_block(layers: Sequence[Attention], block_size: int, dtype: torch.dtype = torch.float32) -> int:
        """Bytes one block takes over all layers, keys and values."""
        return sum(2 * block_size * layer.num_kv_heads * layer.head_dim * dtype.itemsize for layer in layers)

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in (*self._keys, *self._values))

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store keys and values `[rows, kv_heads, head_dim]` at `slots` int64 `[rows]`."""
        self._keys[layer].index_copy_(0, slots, keys.to(self.dtype))
        self._values[layer].index_copy_(0, slots, values.to(self.dtype))

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """All keys and all values of a layer, by slot."""
        return self._keys[layer], self._values[layer]

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks `(source, target)` in every layer, one after the other."""
        for source, target in copies:
            source_slots = slice(source * self.block_size, (source + 1) * self.block_size)
            target_slots = slice(target * self.block_size, (target + 1) * self.block_size)
            for tensor in (*self._keys, *self._values):
                tensor[target_slots] = tensor[source_slots]
