"""The ops of a model that is being trained: the bulk ops with trained weights in place, differentiable."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import gelu, silu, softmax
from torch.nn.functional import linear as matrix_product

from octavo.ops.base import Activation, Attention, Experts, Linear, Norm
from octavo.ops.reference.batch import Batch
from octavo.ops.reference.routing import Routing, route
from octavo.quantize.bulk_ops import BulkOps, attend_to_itself, dense
from octavo.quantize.fake_quantize import TrainedWeight, straight_through


class TrainingOps(BulkOps):
    """Linears named in `weights` compute with what is trained, norms named in `gains` with their weights times that.

    Nothing is changed in place that a gradient needs. Which experts a row uses is not differentiable; their weights
    are. A rounded input passes its gradient straight through.
    """

    def __init__(self, weights: Mapping[str, TrainedWeight], gains: Mapping[str, Tensor] | None = None) -> None:
        super().__init__()
        self._weights = weights
        self._gains = gains or {}

    def norm(self, x: Tensor, norm: Norm) -> Tensor:
        gain = self._gains.get(norm.name)
        weight = norm.weight if gain is None else norm.weight * gain
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.eps) * weight

    def linear(self, x: Tensor, linear: Linear) -> Tensor:
        trained = self._weights.get(linear.name)
        inputs = linear.inputs if trained is None else trained.inputs
        if inputs is not None:
            x = straight_through(x, inputs.round(x.detach()))
        weight = dense(linear.weight) if trained is None else trained.weight()
        return matrix_product(x, weight, linear.bias)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, attention: Attention, batch: Batch) -> Tensor:
        lengths = [span.num_rows for span in batch.spans]
        sequences = zip(q.split(lengths), k.split(lengths), v.split(lengths), strict=True)
        if attention.softcap is None:
            return torch.cat([attend_to_itself(*sequence, attention) for sequence in sequences])
        return torch.cat([_attend_capped(*sequence, attention, attention.softcap) for sequence in sequences])

    def gated(self, gate: Tensor, up: Tensor, activation: Activation) -> Tensor:
        return (silu(gate) if activation is Activation.SILU else gelu(gate, approximate="tanh")) * up

    def experts(self, x: Tensor, experts: Experts) -> Tensor:
        y = torch.zeros_like(x)
        for expert, rows, weights in self.route(x, experts).groups():
            y = y.index_add(0, rows, self.mlp(x[rows], experts.mlps[expert], experts.activation) * weights)
        return y

    def route(self, x: Tensor, experts: Experts) -> Routing:
        logits = self.linear(x, experts.router)
        chosen = route(logits.detach(), experts.experts_per_token, experts.renormalize).chosen
        weights = softmax(logits, -1).gather(1, chosen)
        return Routing(chosen, weights / weights.sum(-1, keepdim=True) if experts.renormalize else weights)


def _attend_capped(q: Tensor, k: Tensor, v: Tensor, attention: Attention, softcap: float) -> Tensor:
    """One sequence with capped scores: q `[tokens, heads * head_dim]`, k and v `[tokens, kv_heads * head_dim]`."""
    num_tokens, repeats = len(q), attention.num_heads // attention.num_kv_heads
    queries, keys, values = (x.view(num_tokens, -1, attention.head_dim).transpose(0, 1) for x in (q, k, v))
    keys, values = keys.repeat_interleave(repeats, 0), values.repeat_interleave(repeats, 0)
    scores = torch.tanh(queries @ keys.transpose(1, 2) * (attention.scale / softcap)) * softcap
    visible = torch.ones(num_tokens, num_tokens, dtype=torch.bool).tril()
    if attention.window is not None:
        visible = visible.triu(1 - attention.window)
    result = softmax(scores.masked_fill(~visible, -torch.inf), -1) @ values
    return result.transpose(0, 1).reshape(q.shape)
