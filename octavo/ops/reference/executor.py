"""`ReferenceExecutor`: steps in, logits out, on the CPU with torch."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.core.step import Step
from octavo.ops.base import Executor, Model
from octavo.ops.kv_format import kv_format
from octavo.ops.reference.batch import paged_batch, whole_prompts
from octavo.ops.reference.kv_storage import KVStorage
from octavo.ops.reference.ops import ReferenceOps
from octavo.ops.reference.tiles import RowTiles


class ReferenceExecutor(Executor):
    """Computes steps of `model` over its own `num_blocks` blocks of `block_size` positions.

    `kv_dtype` is what keys and values are rounded to, one of `kv_format.KV_DTYPES` but "auto"; arithmetic is float32.
    """

    def __init__(self, model: Model, num_blocks: int, block_size: int, kv_dtype: str = "float32") -> None:
        self.model = model
        self.num_blocks = num_blocks
        self.block_size = block_size
        layers = model.attention_layers
        self.storage = KVStorage(layers, num_blocks, block_size, kv_format(kv_dtype, layers))
        self.ops = ReferenceOps(RowTiles())
        self._probe()

    @property
    def row_tiles(self) -> dict[tuple[int, int], tuple[int, ...]]:
        """Row counts in use for each shape of weights, found to give equal bits on this machine; for reports."""
        return self.ops.tiles.describe()

    @torch.inference_mode()
    def execute(self, step: Step) -> Tensor:
        """Float32 logits `[step.num_logit_rows, vocabulary]` in chunk order."""
        self.storage.copy_blocks(step.block_copies)
        logits: Tensor = self.model.forward(self.ops, paged_batch(step, self.storage))
        return logits

    @torch.inference_mode()
    def _probe(self) -> None:
        """One token through the whole model: every weight shape is probed now and not in the first request."""
        self.model.forward(self.ops, whole_prompts([[0]]))
