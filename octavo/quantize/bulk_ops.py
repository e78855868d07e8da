"""The reference ops for work on a whole text at once: calibration and evaluation."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import gelu, scaled_dot_product_attention, silu
from torch.nn.functional import linear as matrix_product

from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.ops.base import Activation, Attention, Linear
from octavo.ops.reference.batch import Batch
from octavo.ops.reference.ops import ReferenceOps


class BulkOps(ReferenceOps):
    """Matrix products over all rows in one call and torch's fused attention: the fastest way, and reproducible for
    equal inputs. Unlike with the reference, a row's last bits may depend on how many others there are; here the
    others are always the same."""

    def linear(self, x: Tensor, linear: Linear) -> Tensor:
        x = x if linear.inputs is None else linear.inputs.round(x)
        return matrix_product(x, dense(linear.weight), linear.bias)

    def gated(self, gate: Tensor, up: Tensor, activation: Activation) -> Tensor:
        activated = silu(gate, inplace=True) if activation is Activation.SILU else gelu(gate, approximate="tanh")
        return activated.mul_(up)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, attention: Attention, batch: Batch) -> Tensor:
        """Of `whole_prompts`: each sequence attends to itself alone."""
        if attention.softcap is not None or batch.storage is not None:
            return super().attend(q, k, v, attention, batch)
        y, lengths = torch.empty_like(q), [span.num_rows for span in batch.spans]
        for queries, keys, values, part in zip(*(each.split(lengths) for each in (q, k, v, y)), strict=True):
            part.copy_(attend_to_itself(queries, keys, values, attention))
        return y


def attend_to_itself(q: Tensor, k: Tensor, v: Tensor, attention: Attention) -> Tensor:
    """Attention of one sequence: q `[tokens, heads * head_dim]`, k and v `[tokens, kv_heads * head_dim]` -> like q."""
    num_tokens = len(q)
    shape = (1, num_tokens, -1, attention.head_dim)  # torch's fused kernel wants a batch
    queries, keys, values = (x.view(shape).transpose(1, 2) for x in (q, k, v))
    window = attention.window
    visible = None
    if window is not None and window < num_tokens:
        visible = torch.ones(num_tokens, num_tokens, dtype=torch.bool).tril().triu(1 - window)
    result = scaled_dot_product_attention(
        queries, keys, values, visible, is_causal=visible is None, scale=attention.scale, enable_gqa=True
    )
    return result.transpose(1, 2).reshape(q.shape)


def dense(weight: Tensor | QuantizedTensor) -> Tensor:
    """Float32 values of a matrix, whatever it is stored as."""
    return weight.dequantize() if isinstance(weight, QuantizedTensor) else weight.to(torch.float32)
