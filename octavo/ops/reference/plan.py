"""What the reference executor occupies: bounds from the shapes of its weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.ops.base import Attention, Linear
from octavo.ops.executor_plan import StepLimits
from octavo.ops.reference.attention import MAX_SCORES
from octavo.ops.reference.attention_plan import KEY_TILE
from octavo.ops.reference.ops import MAX_DECODED_WEIGHTS

_FLOAT = 4
#: What the allocator, torch's and MKL's buffers and thread stacks keep beyond the tensors themselves. SmolLM2-135M at
#: 4 bits went 16 MiB over a plan that allowed 64, through 20 streams; the rest is room to spare.
_ALLOCATOR_BYTES = 112 << 20


def scratch_bytes(attention: Sequence[Attention], linears: Iterable[Linear], head: Linear, limits: StepLimits) -> int:
    """The most a step's temporaries take at one time: the worst layer, or the head after it.

    `linears` are those of the layers.
    """
    linears = list(linears)
    widest = max(max(linear.num_inputs, linear.num_outputs) for linear in linears)
    q_features = max(layer.num_heads * layer.head_dim for layer in attention)
    kv_features = max(layer.num_kv_heads * layer.head_dim for layer in attention)
    row_features = 6 * head.num_inputs + max(4 * widest, 6 * q_features + 6 * kv_features)
    activations = limits.max_num_batched_tokens * row_features * _FLOAT
    tiles = 3 * (MAX_SCORES * _FLOAT + limits.max_num_seqs * KEY_TILE * kv_features * _FLOAT)
    decoding = 3 * MAX_DECODED_WEIGHTS * _FLOAT if any(_is_decoded(linear) for linear in (*linears, head)) else 0
    logits = 2 * limits.max_num_logit_rows * head.num_outputs * _FLOAT
    return activations + max(tiles, logits) + decoding + _ALLOCATOR_BYTES


def _is_decoded(linear: Linear) -> bool:
    return isinstance(linear.weight, QuantizedTensor) or linear.weight.dtype != torch.float32
