"""Bounds of what one step needs beside weights and KV blocks, from the model's shapes."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from octavo.models.decoder import DecoderModel
from octavo.numerics.packed_tensor import PackedTensor
from octavo.ops.base import Linear
from octavo.ops.reference.attention import MAX_SCORES
from octavo.ops.reference.attention_plan import KEY_TILE
from octavo.ops.reference.ops import MAX_DECODED_WEIGHTS

_FLOAT = 4
#: What the allocator, torch's and MKL's buffers and thread stacks keep beyond the tensors themselves. SmolLM2-135M at
#: 4 bits went 16 MiB over a plan that allowed 64, through 20 streams; the rest is room to spare.
_ALLOCATOR_BYTES = 112 << 20


def scratch_bytes(model: DecoderModel, max_num_tokens: int, max_num_seqs: int, max_logit_rows: int) -> int:
    """The most a step's temporaries take at one time: the worst layer, or the head and the sampler after it."""
    spec = model.spec
    attention = model.attention_layers
    q_features = max(layer.num_heads * layer.head_dim for layer in attention)
    kv_features = max(layer.num_kv_heads * layer.head_dim for layer in attention)
    row_features = 6 * spec.hidden_size + max(4 * spec.intermediate_size, 6 * q_features + 6 * kv_features)
    activations = max_num_tokens * row_features * _FLOAT
    tiles = 3 * (MAX_SCORES * _FLOAT + max_num_seqs * KEY_TILE * kv_features * _FLOAT)
    decoding = 3 * MAX_DECODED_WEIGHTS * _FLOAT if any(_is_decoded(linear) for linear in _linears(model)) else 0
    logits = 2 * max_logit_rows * spec.vocab_size * _FLOAT
    sampling = 16 * spec.vocab_size * _FLOAT
    return activations + max(tiles, logits + sampling) + decoding + _ALLOCATOR_BYTES


def _is_decoded(linear: Linear) -> bool:
    return isinstance(linear.weight, PackedTensor) or linear.weight.dtype != torch.float32


def _linears(model: DecoderModel) -> Iterator[Linear]:
    for layer in model.layers:
        yield from layer.linears()
    yield model.head
