"""A model's logits for whole windows, a few rows of the vocabulary at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from octavo.models.decoder import DecoderModel
from octavo.numerics.packed_tensor import PackedTensor
from octavo.ops.base import Linear
from octavo.ops.reference import ReferenceOps, whole_prompts

#: Rows of logits that exist at once: 256 x 262,144 float32 numbers are 256 MiB.
CHUNK_ROWS = 256


class WindowOps(ReferenceOps):
    """The reference for whole windows: products over all rows at once (rows need not be independent of each other
    here), and the final hidden states instead of logits."""

    def linear(self, x: Tensor, linear_: Linear) -> Tensor:
        return linear(x, dense(linear_.weight), linear_.bias)

    def logits(self, x: Tensor, head: Linear, softcap: float | None, batch: Any) -> Tensor:
        return x


def dense(weight: Tensor | PackedTensor) -> Tensor:
    return weight.dequantize() if isinstance(weight, PackedTensor) else weight.to(torch.float32)


class WindowLogits:
    """Computes logits of windows; a packed head is unpacked once."""

    def __init__(self, model: DecoderModel) -> None:
        self._model = model
        self._ops = WindowOps()
        self._head = dense(model.head.weight)

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
