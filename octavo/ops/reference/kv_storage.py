"""Where keys and values of past tokens lie: blocks of a fixed number of positions, for each layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from octavo.ops.base import Attention
from octavo.ops.kv_format import KvFormat
from octavo.ops.reference.kv_rounding import round_kv, scale_tensors


class KVStorage:
    """Keys and values, each `[num_blocks * block_size + 1, kv_heads, head_dim]` for every layer.

    ```
    slot = block_table[position // block_size] * block_size + position % block_size
    ```
    The last slot stays zero: it stands for positions that a sequence does not have. All pages are touched when the
    storage is made, so that the process's size does not grow later. Formats with codes are rounded to on the way in and
    kept as float32: this is what others are tested against, not a way to save memory.
    """

    def __init__(
        self, layers: Sequence[Attention], num_blocks: int, block_size: int, format: KvFormat = KvFormat.FLOAT32
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.format = format
        self.dtype = _dtype(format)
        self.zero_slot = num_blocks * block_size
        shapes = [(self.zero_slot + 1, layer.num_kv_heads, layer.head_dim) for layer in layers]
        self._keys = [torch.empty(shape, dtype=self.dtype).zero_() for shape in shapes]
        self._values = [torch.empty(shape, dtype=self.dtype).zero_() for shape in shapes]
        self._scales = [scale_tensors(format, layer) for layer in layers]

    @staticmethod
    def bytes_per_block(layers: Sequence[Attention], block_size: int, format: KvFormat = KvFormat.FLOAT32) -> int:
        """Bytes one block takes over all layers, keys and values."""
        return sum(2 * block_size * layer.num_kv_heads * layer.head_dim * _dtype(format).itemsize for layer in layers)

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in (*self._keys, *self._values))

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store keys and values `[rows, kv_heads, head_dim]` at `slots` int64 `[rows]`."""
        for stored, x, scales in zip(self.layer(layer), (keys, values), self._scales[layer], strict=True):
            stored.index_copy_(0, slots, round_kv(x, self.format, scales).to(self.dtype))

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


def _dtype(format: KvFormat) -> torch.dtype:
    return torch.bfloat16 if format is KvFormat.BFLOAT16 else torch.float32
