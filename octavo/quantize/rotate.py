"""Rotations that no kernel pays for (QuaRot, Ashkboos et al. 2024, stage 1): outliers are spread over all channels.

    R1   the residual stream: embedding, o and down write x R; q, k, v, gate, up, routers and the head read it
    R2   each value head: v writes it, o takes it back
Each R is one Hadamard matrix, or has one per block of features on its diagonal: an outlier then stays among the
features that share its scale, which is what formats with small groups (FP4) want.

An RMS norm without a gain gives the same for x and x R, so gains first move into the linears that read the norm. The
final norm's goes into the head alone: embedding and head part ways. Everything is computed in float64.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from octavo.core.errors import InvalidField
from octavo.models.decoder import DecoderLayer, DecoderModel
from octavo.numerics.hadamard import has_hadamard, random_hadamard
from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.ops.base import Experts, Linear, Norm
from octavo.quantize.bulk_ops import dense

if TYPE_CHECKING:
    from octavo.models.spec import ModelSpec


def check_rotation(spec: ModelSpec, block: int | None = None) -> None:
    """Raises `InvalidField` with the reason if a model of this kind cannot be rotated, or not in blocks of `block`."""
    names = spec.names
    if names.attention_output_norm is not None or names.mlp_output_norm is not None:
        reason = (
            f"{spec.family} norms what a half layer adds to the residual stream, with a gain by channel: it has no "
            "linear behind it to move into, and does not commute with a rotation; use awq"
        )
        raise InvalidField("transforms", "rotate", reason)
    sizes = {"hidden size": spec.hidden_size, "head size": spec.head_dim}
    for what, size in sizes.items():
        if block is None and not has_hadamard(size):
            reason = f"no Hadamard matrix of the {what}, {size}, is known here; use rotation_block, or awq"
            raise InvalidField("transforms", "rotate", reason)
        if block is not None and (size % block or not has_hadamard(block)):
            fits = [2**power for power in range(1, 11) if all(each % 2**power == 0 for each in sizes.values())]
            expected = f"a divisor of the {what}, {size}, such as {', '.join(map(str, fits)) or 'none'}"
            raise InvalidField("rotation_block", block, expected)


def rotate(model: DecoderModel, seed: int, block: int | None = None) -> None:
    """Rotate `model`, changed in place: it computes the same logits. Weights become float32, norms ones, and the head
    a matrix of its own. Raises `InvalidField` as `check_rotation` does. Signs are drawn from `seed`."""
    check_rotation(model.spec, block)
    generator = torch.Generator().manual_seed(seed)
    stream = random_hadamard(model.spec.hidden_size, generator, block)
    table, head = _double(model.embedding.weight), _double(model.head.weight)
    model.head = replace(model.head, weight=(head * model.final_norm.weight @ stream).to(torch.float32))
    model.embedding = replace(model.embedding, weight=(table @ stream).to(torch.float32))
    model.final_norm = _without_gain(model.final_norm)
    model.spec = replace(model.spec, tied_embedding=False)
    for layer in model.layers:
        _rotate_layer(layer, stream, random_hadamard(model.spec.head_dim, generator, block))


def _rotate_layer(layer: DecoderLayer, stream: Tensor, head: Tensor) -> None:
    gain = layer.input_norm.weight
    for linear in (layer.q, layer.k):
        layer.replace_linear(_reading(linear, gain, stream))
    layer.replace_linear(_writing_heads(_reading(layer.v, gain, stream), head))
    layer.replace_linear(_writing(_reading_heads(layer.o, head), stream))
    layer.replace_norm(_without_gain(layer.input_norm))
    gain = layer.mlp_norm.weight
    for mlp in layer.mlps:
        layer.replace_linear(_reading(mlp.gate, gain, stream))
        layer.replace_linear(_reading(mlp.up, gain, stream))
        layer.replace_linear(_writing(mlp.down, stream))
    if isinstance(layer.mlp, Experts):
        layer.replace_router(_reading(layer.mlp.router, gain, stream))
    layer.replace_norm(_without_gain(layer.mlp_norm))


def _reading(linear: Linear, gain: Tensor, stream: Tensor) -> Linear:
    """Reads x R where it read x times the norm's gain."""
    return _with_weight(linear, _double(linear.weight) * gain @ stream)


def _writing(linear: Linear, stream: Tensor) -> Linear:
    """Writes y R where it wrote y."""
    bias = None if linear.bias is None else (linear.bias.to(torch.float64) @ stream).to(torch.float32)
    return replace(_with_weight(linear, stream.T @ _double(linear.weight)), bias=bias)


def _writing_heads(linear: Linear, head: Tensor) -> Linear:
    weight = _double(linear.weight).unflatten(0, (-1, len(head)))
    bias = linear.bias
    if bias is not None:
        bias = (bias.to(torch.float64).unflatten(0, (-1, len(head))) @ head).flatten().to(torch.float32)
    return replace(_with_weight(linear, (head.T @ weight).flatten(0, 1)), bias=bias)


def _reading_heads(linear: Linear, head: Tensor) -> Linear:
    weight = _double(linear.weight).unflatten(1, (-1, len(head)))
    return _with_weight(linear, (weight @ head).flatten(1))


def _with_weight(linear: Linear, weight: Tensor) -> Linear:
    return replace(linear, weight=weight.to(torch.float32).contiguous())


def _double(weight: Tensor | QuantizedTensor) -> Tensor:
    return dense(weight).to(torch.float64)


def _without_gain(norm: Norm) -> Norm:
    return replace(norm, weight=torch.ones_like(norm.weight))
