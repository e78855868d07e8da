"""A model's logits as the native executor serves them: int8 activations, paged keys and values of its format."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from octavo.core.block_table import BlockTable
from octavo.core.step import Chunk, Step
from octavo.measure.forward import CHUNK_ROWS
from octavo.models.decoder import DecoderModel
from octavo.ops.executor_plan import StepLimits
from octavo.ops.native.executor import BLOCK_SIZE_MULTIPLE, NativeExecutor
from octavo.ops.native.packed_model import pack_model


class ServedLogits:
    """Runs windows of at most `window_tokens` tokens through a native executor of its own.

    `kv_dtype` is "float32", "bfloat16" or "int8". Raises `ExecutorUnavailable` for a model it cannot compute.
    """

    def __init__(self, model: DecoderModel, window_tokens: int, kv_dtype: str = "bfloat16") -> None:
        num_blocks = -(-window_tokens // BLOCK_SIZE_MULTIPLE)
        limits = StepLimits(CHUNK_ROWS, max_num_seqs=1, max_num_logit_rows=CHUNK_ROWS)
        self._executor = NativeExecutor(pack_model(model), num_blocks, BLOCK_SIZE_MULTIPLE, limits, kv_dtype=kv_dtype)
        self._num_windows = 0

    def window(self, window: list[int]) -> Iterator[Tensor]:
        """Logits `[at most CHUNK_ROWS, vocabulary]` float32 of all tokens but the last, in order; a piece is
        overwritten by the next."""
        tokens, table = window[:-1], BlockTable(range(self._executor.num_blocks))
        self._num_windows += 1
        for start in range(0, len(tokens), CHUNK_ROWS):
            piece = tokens[start : start + CHUNK_ROWS]
            yield self._executor.execute(Step([Chunk(self._num_windows, piece, start, table, list(range(len(piece))))]))
