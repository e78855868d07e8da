"""The dense decoder: what one layer holds, and the one forward pass over the op set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from octavo.core.errors import InvalidField
from octavo.models.spec import ModelSpec
from octavo.ops.base import Activation, Attention, Embedding, Linear, Norm, Ops, Rope, X

#: A layer's linears in the order they run; those in one group read the same input, so they share its statistics.
LINEAR_GROUPS: tuple[tuple[str, ...], ...] = (("q", "k", "v"), ("o",), ("gate", "up"), ("down",))


@dataclass(slots=True)
class DecoderLayer:
    """One layer's weights. Norms a family lacks are None. `replace_linear` swaps a linear for its quantized form."""

    index: int
    attention: Attention
    rope: Rope
    activation: Activation
    input_norm: Norm
    q: Linear
    k: Linear
    v: Linear
    o: Linear
    mlp_norm: Norm
    gate: Linear
    up: Linear
    down: Linear
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    attention_output_norm: Norm | None = None
    mlp_output_norm: Norm | None = None

    def linears(self) -> Iterator[Linear]:
        """All linears, in the order they run."""
        for group in LINEAR_GROUPS:
            for role in group:
                yield getattr(self, role)

    def replace_linear(self, new: Linear) -> None:
        """Put `new` in the place of the linear of the same name and shape. Raises `InvalidField`."""
        for group in LINEAR_GROUPS:
            for role in group:
                old: Linear = getattr(self, role)
                if old.name != new.name:
                    continue
                if tuple(old.weight.shape) != tuple(new.weight.shape):
                    raise InvalidField(new.name, tuple(new.weight.shape), f"the shape is {tuple(old.weight.shape)}")
                setattr(self, role, new)
                return
        raise InvalidField("linear", new.name, f"layer {self.index} has {', '.join(x.name for x in self.linears())}")


def decoder_layer(ops: Ops, layer: DecoderLayer, x: X, batch: Any) -> X:
    """x `[rows, hidden]` -> same."""
    head_dim = layer.attention.head_dim
    h = ops.norm(x, layer.input_norm)
    q, k, v = ops.linear(h, layer.q), ops.linear(h, layer.k), ops.linear(h, layer.v)
    if layer.q_norm is not None:
        q = ops.head_norm(q, layer.q_norm, head_dim)
    if layer.k_norm is not None:
        k = ops.head_norm(k, layer.k_norm, head_dim)
    q, k = ops.rope(q, layer.rope, head_dim, batch), ops.rope(k, layer.rope, head_dim, batch)
    h = ops.linear(ops.attend(q, k, v, layer.attention, batch), layer.o)
    if layer.attention_output_norm is not None:
        h = ops.norm(h, layer.attention_output_norm)
    x = x + h
    h = ops.norm(x, layer.mlp_norm)
    h = ops.linear(ops.gated(ops.linear(h, layer.gate), ops.linear(h, layer.up), layer.activation), layer.down)
    if layer.mlp_output_norm is not None:
        h = ops.norm(h, layer.mlp_output_norm)
    return x + h


@dataclass(slots=True)
class DecoderModel:
    """A whole model. With `spec.tied_embedding`, `head.weight` and `embedding.weight` are one object."""

    spec: ModelSpec
    embedding: Embedding
    layers: list[DecoderLayer]
    final_norm: Norm
    head: Linear

    @property
    def attention_layers(self) -> list[Attention]:
        return [layer.attention for layer in self.layers]

    @property
    def vocab_size(self) -> int:
        return self.spec.vocab_size

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights as they lie in memory, a tied matrix once."""
        weights: dict[int, int] = {}
        for owner in self._owners():
            for tensor in (owner.weight, getattr(owner, "bias", None)):
                if tensor is not None:
                    weights[id(tensor)] = getattr(tensor, "num_bytes", None) or tensor.nbytes
        return sum(weights.values())

    def forward(self, ops: Ops, batch: Any) -> X:
        """The whole pass; returns `ops.logits(...)`."""
        x = ops.embed(self.embedding, batch)
        for layer in self.layers:
            x = decoder_layer(ops, layer, x, batch)
        return self.finish(ops, x, batch)

    def finish(self, ops: Ops, x: X, batch: Any) -> X:
        """What follows the last layer: final norm and head."""
        return ops.logits(ops.norm(x, self.final_norm), self.head, self.spec.logit_softcap, batch)

    def _owners(self) -> Iterator[Any]:
        yield self.embedding
        yield self.head
        yield self.final_norm
        for layer in self.layers:
            yield from layer.linears()
            norms = (layer.input_norm, layer.mlp_norm, layer.q_norm, layer.k_norm)
            for norm in (*norms, layer.attention_output_norm, layer.mlp_output_norm):
                if norm is not None:
                    yield norm
