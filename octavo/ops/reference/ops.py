"""The op set in torch. Values are float32 `[rows, features]`; weights may be float32, bfloat16 or packed."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.ops.base import Activation, Attention, Embedding, Experts, Linear, Norm, Ops, Rope
from octavo.ops.reference.attention import attend
from octavo.ops.reference.batch import Batch
from octavo.ops.reference.routing import Routing, route
from octavo.ops.reference.tiles import RowTiles

#: Weights turned into float32 at a time: 4 MiB stay near the processor (16 MiB: twice the time of a packed step). A
#: larger matrix is computed output rows by output rows.
MAX_DECODED_WEIGHTS = 1 << 20


class ReferenceOps(Ops):
    """Eager torch. Holds nothing but the row counts its matrix products use (`tiles`)."""

    def __init__(self, tiles: RowTiles | None = None) -> None:
        self.tiles = tiles or RowTiles()

    def embed(self, embedding: Embedding, batch: Batch) -> Tensor:
        weight = embedding.weight
        rows = weight.rows(batch.tokens) if isinstance(weight, QuantizedTensor) else weight[batch.tokens]
        x = rows.to(torch.float32)
        return x if embedding.multiplier == 1.0 else x * embedding.multiplier

    def norm(self, x: Tensor, norm: Norm) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.eps) * norm.weight

    def head_norm(self, x: Tensor, norm: Norm, head_dim: int) -> Tensor:
        return self.norm(x.view(-1, head_dim), norm).view(x.shape)

    def linear(self, x: Tensor, linear: Linear) -> Tensor:
        x = x if linear.inputs is None else linear.inputs.round(x)
        pieces = [self.tiles.linear(x, weight) for weight in float_pieces(linear.weight)]
        y = pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)
        return y if linear.bias is None else y + linear.bias

    def rope(self, x: Tensor, rope: Rope, head_dim: int, batch: Batch) -> Tensor:
        cos, sin = batch.rotation(rope)
        heads = x.view(len(x), -1, head_dim)
        half = cos.shape[-1]
        first, second, rest = heads[..., :half], heads[..., half : 2 * half], heads[..., 2 * half :]
        rotated = (first * cos - second * sin, second * cos + first * sin, rest)
        return torch.cat(rotated, dim=-1).view(x.shape)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, attention: Attention, batch: Batch) -> Tensor:
        shape = (len(k), attention.num_kv_heads, attention.head_dim)
        keys, values = batch.keys_and_values(attention.layer, k.view(shape), v.view(shape))
        heads = q.view(len(q), attention.num_heads, attention.head_dim)
        return attend(heads, keys, values, attention, batch).view(q.shape)

    def gated(self, gate: Tensor, up: Tensor, activation: Activation) -> Tensor:
        activated = _silu(gate) if activation is Activation.SILU else _gelu_tanh(gate)
        return activated.mul_(up)

    def experts(self, x: Tensor, experts: Experts) -> Tensor:
        y = torch.zeros_like(x)
        for expert, rows, weights in self.route(x, experts).groups():
            y.index_add_(0, rows, self.mlp(x[rows], experts.mlps[expert], experts.activation).mul_(weights))
        return y

    def route(self, x: Tensor, experts: Experts) -> Routing:
        """Each row's experts and their weights."""
        return route(self.linear(x, experts.router), experts.experts_per_token, experts.renormalize)

    def logits(self, x: Tensor, head: Linear, softcap: float | None, batch: Batch) -> Tensor:
        y = self.linear(x[batch.logit_rows], head)
        return y if softcap is None else (y / softcap).tanh_().mul_(softcap)


def float_pieces(weight: Tensor | QuantizedTensor) -> Iterator[Tensor]:
    """The matrix as float32, whole, or by output rows where it must be decoded first and is large.

    The cut depends on the shape alone: a product's bits may depend on its shape.
    """
    if isinstance(weight, Tensor) and weight.dtype == torch.float32:
        yield weight
        return
    num_rows, num_columns = weight.shape
    step = max(1, MAX_DECODED_WEIGHTS // num_columns)
    for first in range(0, num_rows, step):
        if isinstance(weight, QuantizedTensor):
            yield weight.slice_rows(first, first + step).dequantize()
        else:
            yield weight[first : first + step].to(torch.float32)


def _silu(x: Tensor) -> Tensor:
    """x / (1 + e^-x)."""
    return x / torch.exp(-x).add_(1.0)


def _gelu_tanh(x: Tensor) -> Tensor:
    """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""
    inner = (x * x * x).mul_(0.044715).add_(x).mul_(0.7978845608028654)
    return inner.tanh_().add_(1.0).mul_(x).mul_(0.5)
