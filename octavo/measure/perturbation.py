"""What single changes of a model do to its predictions, measured: the check on every estimate of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear as matrix_product

from octavo.models.decoder import DecoderModel, decoder_layer
from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.ops.base import Linear
from octavo.ops.reference.batch import whole_prompts
from octavo.quantize.bulk_ops import BulkOps, dense

#: Rows of logits that exist at once.
_CHUNK_ROWS = 256


class PerturbationMeter:
    """KL(model || changed model) per token in nats, of one change at a time on the same `segments`.

    What enters each block is kept, so a change in block n costs the blocks from n on.
    """

    def __init__(self, model: DecoderModel, segments: Sequence[Sequence[int]]) -> None:
        self._model, self._batch = model, whole_prompts(segments)
        with torch.inference_mode():
            ops = BulkOps()
            self._entering = [ops.embed(model.embedding, self._batch)]
            for layer in model.layers:
                self._entering.append(decoder_layer(ops, layer, self._entering[-1], self._batch))
            self._head = dense(model.head.weight)
            self._final = ops.norm(self._entering[-1], model.final_norm)

    def linears(self, block: int, weights: Mapping[str, QuantizedTensor]) -> float:
        """Of `weights` by module name in the place of block `block`'s own."""
        return self._divergence(_ReplacedOps(weights), self._entering[block], block, self._head)

    def embedding(self, weight: QuantizedTensor) -> float:
        """Of another embedding, and of the head if it is tied to it."""
        changed = weight.dequantize()
        with torch.inference_mode():
            states = changed[self._batch.tokens] * self._model.embedding.multiplier
        return self._divergence(BulkOps(), states, 0, changed if self._model.spec.tied_embedding else self._head)

    def head(self, weight: QuantizedTensor) -> float:
        """Of another head that is not tied."""
        return self._divergence(BulkOps(), self._entering[-1], len(self._model.layers), weight.dequantize())

    @torch.inference_mode()
    def _divergence(self, ops: BulkOps, states: Tensor, first_block: int, head: Tensor) -> float:
        for layer in self._model.layers[first_block:]:
            states = decoder_layer(ops, layer, states, self._batch)
        final = ops.norm(states, self._model.final_norm)
        pairs = zip(self._final.split(_CHUNK_ROWS), final.split(_CHUNK_ROWS), strict=True)
        total = sum(float(self._kl(ours, theirs, head)) for ours, theirs in pairs)
        return total / self._batch.num_rows

    def _kl(self, base_rows: Tensor, rows: Tensor, head: Tensor) -> Tensor:
        base, changed = self._log_p(base_rows, self._head), self._log_p(rows, head)
        return (base.exp() * (base - changed)).sum().clamp_min(0)

    def _log_p(self, rows: Tensor, head: Tensor) -> Tensor:
        logits, softcap = matrix_product(rows, head, self._model.head.bias), self._model.spec.logit_softcap
        return torch.log_softmax(logits if softcap is None else softcap * torch.tanh(logits / softcap), -1)


class _ReplacedOps(BulkOps):
    """Some linears compute with other weights."""

    def __init__(self, weights: Mapping[str, QuantizedTensor]) -> None:
        super().__init__()
        self._weights = {name: weight.dequantize() for name, weight in weights.items()}

    def linear(self, x: Tensor, linear: Linear) -> Tensor:
        if linear.name not in self._weights:
            return super().linear(x, linear)
        return matrix_product(x, self._weights[linear.name], linear.bias)


def rank_correlation(estimates: Sequence[float], measured: Sequence[float]) -> float:
    """Spearman's: Pearson's correlation of the ranks, equal values share theirs. NaN for fewer than two values."""
    if len(estimates) < 2:
        return float("nan")
    ranks = torch.stack([_ranks(estimates), _ranks(measured)])
    return float(torch.corrcoef(ranks)[0, 1])


def _ranks(values: Sequence[float]) -> Tensor:
    tensor = torch.tensor(values, dtype=torch.float64)
    below = (tensor[:, None] > tensor[None, :]).sum(1)
    equal = (tensor[:, None] == tensor[None, :]).sum(1)
    return below + (equal - 1) / 2
