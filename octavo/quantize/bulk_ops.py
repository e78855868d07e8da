"""The reference ops for work on a whole text at once: calibration and evaluation."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear as matrix_product
from torch.nn.functional import scaled_dot_product_attention

from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.ops.base import Attention, Linear
from octavo.ops.reference.batch import Batch
from octavo.ops.reference.ops import ReferenceOps


class BulkOps(ReferenceOps):
    """Matrix products over all rows in one call and torch's fused attention: the fastest way, and reproducible for
    equal inputs. Unlike with the reference, a row's last bits may depend on how many others there are; here the
    others are always the same."""

    def linear(self, x: Tensor, linear: Linear) -> Tensor:
        x = x if linear.inputs is None else linear.inputs.round(x)
        return matrix_product(x, dense(linear.weight), linear.bias)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, attention: Attention, batch: Batch) -> Tensor:
        """Of `whole_prompts`: each sequence attends to itself alone."""
        if attention.softcap is not None or batch.storage is not None:
            return super().attend(q, k, v, attention, batch)
        lengths = [span.num_rows for span in batch.spans]
        pieces = zip(q.split(lengths), k.split(lengths), v.split(lengths), strict=True)
        return torch.cat([_attend_to_itself(*piece, attention) for piece in pieces])


def _attend_to_itself(q: Tensor, k: Tensor, v: Tensor, attention: Attention) -> Tensor:
    """q `[tokens, heads * head_dim]`, k and v `[tokens, kv_heads * head_dim]` -> like q."""
    num_tokens, repeats = len(q), attention.num_heads // attention.num_kv_heads
    shape = (1, num_tokens, -1, attention.head_dim)  # torch's fused kernel wants a batch
    queries, keys, values = (x.view(shape).transpose(1, 2) for x in (q, k, v))
    keys, values = keys.repeat_interleave(repeats, 1), values.repeat_interleave(repeats, 1)
    window = attention.window
    visible = None
    if window is not None and window < num_tokens:
        visible = torch.ones(num_tokens, num_tokens, dtype=torch.bool).tril().triu(1 - window)
    result = scaled_dot_product_attention(
        queries, keys, values, attn_mask=visible, is_causal=visible is None, scale=attention.scale
    )
    return result.transpose(1, 2).reshape(q.shape)


def dense(weight: Tensor | QuantizedTensor) -> Tensor:
    """Float32 values of a matrix, whatever it is stored as."""
    return weight.dequantize() if isinstance(weight, QuantizedTensor) else weight.to(torch.float32)
