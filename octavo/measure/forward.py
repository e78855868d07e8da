"""A model's logits for whole windows, a few rows of the vocabulary at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear

from octavo.models.decoder import DecoderModel
from octavo.ops.base import Linear
from octavo.ops.reference.batch import Batch, whole_prompts
from octavo.quantize.bulk_ops import BulkOps, dense

#: Rows of logits that exist at once: 256 x 262,144 float32 numbers are 256 MiB.
CHUNK_ROWS = 256


class WindowOps(BulkOps):
    """Gives the final hidden states instead of logits: those are taken in pieces."""

    def logits(self, x: Tensor, head: Linear, softcap: float | None, batch: Batch) -> Tensor:
        return x


class LogitsSource(Protocol):
    """Whatever computes a window's logits."""

    def window(self, window: list[int]) -> Iterator[Tensor]:
        """Logits `[at most CHUNK_ROWS, vocabulary]` float32 of all tokens but the last, in order."""
        ...


class WindowLogits:
    """Computes logits of windows; a packed head is unpacked once."""

    def __init__(self, model: DecoderModel) -> None:
        self._model = model
        self._ops = WindowOps()
        self._head = dense(model.head.weight)

    def window(self, window: list[int]) -> Iterator[Tensor]:
        """Logits `[at most CHUNK_ROWS, vocabulary]` float32 of all tokens but the last, in order."""
        return self.logits(self.hidden(window)[:-1])

    def hidden(self, window: list[int]) -> Tensor:
        """Final hidden states `[tokens, hidden]`."""
        states: Tensor = self._model.forward(self._ops, whole_prompts([window]))
        return states

    def logits(self, hidden: Tensor) -> Iterator[Tensor]:
        """Logits `[at most CHUNK_ROWS, vocabulary]` float32 of `hidden`'s rows, in order."""
        softcap = self._model.spec.logit_softcap
        for rows in hidden.split(CHUNK_ROWS):
            logits = linear(rows, self._head, self._model.head.bias)
            yield logits if softcap is None else softcap * torch.tanh(logits / softcap)
