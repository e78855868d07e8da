"""The decoder: what one layer holds, and the one forward pass over the op set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from octavo.core.errors import InvalidField
from octavo.models.spec import ModelSpec
from octavo.ops.base import Activation, Attention, Embedding, Experts, GatedMlp, Linear, Norm, Ops, Rope, X


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
    mlp: GatedMlp | Experts
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    attention_output_norm: Norm | None = None
    mlp_output_norm: Norm | None = None

    def linears(self) -> Iterator[Linear]:
        """All linears that a recipe quantizes, in the order they run; a router is not among them."""
        yield from (self.q, self.k, self.v, self.o)
        for mlp in self.mlps:
            yield from (mlp.gate, mlp.up, mlp.down)

    @property
    def mlps(self) -> tuple[GatedMlp, ...]:
        """The one dense MLP, or all experts by id."""
        return self.mlp.mlps if isinstance(self.mlp, Experts) else (self.mlp,)

    def replace_linear(self, new: Linear) -> None:
        """Put `new` in the place of the linear of the same name and shape. Raises `InvalidField`."""
        old = next((linear for linear in self.linears() if linear.name == new.name), None)
        if old is None:
            names = ", ".join(linear.name for linear in self.linears())
            raise InvalidField("linear", new.name, f"layer {self.index} has {names}")
        if tuple(old.weight.shape) != tuple(new.weight.shape):
            raise InvalidField(new.name, tuple(new.weight.shape), f"the shape is {tuple(old.weight.shape)}")
        for role in ("q", "k", "v", "o"):
            if getattr(self, role) is old:
                setattr(self, role, new)
                return
        mlps = tuple(_with_linear(mlp, old, new) for mlp in self.mlps)
        self.mlp = replace(self.mlp, mlps=mlps) if isinstance(self.mlp, Experts) else mlps[0]

    def replace_norm(self, new: Norm) -> None:
        """Put `new` in the place of the norm of the same name. Raises `InvalidField`."""
        for role in ("input_norm", "mlp_norm", "q_norm", "k_norm", "attention_output_norm", "mlp_output_norm"):
            old = getattr(self, role)
            if old is not None and old.name == new.name:
                setattr(self, role, new)
                return
        raise InvalidField("norm", new.name, f"layer {self.index} has no such norm")

    def replace_router(self, new: Linear) -> None:
        """Put `new` in the router's place. Raises `InvalidField`."""
        if not isinstance(self.mlp, Experts) or self.mlp.router.name != new.name:
            raise InvalidField("router", new.name, f"layer {self.index} has no such router")
        self.mlp = replace(self.mlp, router=new)

    def owners(self) -> Iterator[Linear | Norm]:
        """Everything in the layer that holds a weight."""
        yield from self.linears()
        if isinstance(self.mlp, Experts):
            yield self.mlp.router
        norms = (self.input_norm, self.mlp_norm, self.q_norm, self.k_norm)
        for norm in (*norms, self.attention_output_norm, self.mlp_output_norm):
            if norm is not None:
                yield norm


def _with_linear(mlp: GatedMlp, old: Linear, new: Linear) -> GatedMlp:
    for role in ("gate", "up", "down"):
        if getattr(mlp, role) is old:
            return replace(mlp, **{role: new})
    return mlp


def decoder_layer(ops: Ops, layer: DecoderLayer, x: X, batch: Any) -> X:
    """x `[rows, hidden]` -> same."""
    x = x + attention_half(ops, layer, ops.norm(x, layer.input_norm), batch)
    return x + mlp_half(ops, layer, ops.norm(x, layer.mlp_norm))


def attention_half(ops: Ops, layer: DecoderLayer, h: X, batch: Any) -> X:
    """From what the input norm gives to what is added to the residual stream, `[rows, hidden]` -> same."""
    q, k, v = queries_keys_values(ops, layer, h, batch)
    h = ops.linear(ops.attend(q, k, v, layer.attention, batch), layer.o)
    return h if layer.attention_output_norm is None else ops.norm(h, layer.attention_output_norm)


def queries_keys_values(ops: Ops, layer: DecoderLayer, h: X, batch: Any) -> tuple[X, X, X]:
    """As attention gets them: normed where the family does, and rotated."""
    head_dim = layer.attention.head_dim
    q, k, v = ops.linear(h, layer.q), ops.linear(h, layer.k), ops.linear(h, layer.v)
    if layer.q_norm is not None:
        q = ops.head_norm(q, layer.q_norm, head_dim)
    if layer.k_norm is not None:
        k = ops.head_norm(k, layer.k_norm, head_dim)
    return ops.rope(q, layer.rope, head_dim, batch), ops.rope(k, layer.rope, head_dim, batch), v


def mlp_half(ops: Ops, layer: DecoderLayer, h: X) -> X:
    """From what the MLP's norm gives to what is added to the residual stream, `[rows, hidden]` -> same."""
    h = ops.experts(h, layer.mlp) if isinstance(layer.mlp, Experts) else ops.mlp(h, layer.mlp, layer.activation)
    return h if layer.mlp_output_norm is None else ops.norm(h, layer.mlp_output_norm)


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

    def norms(self) -> Iterator[Norm]:
        """All of them, the final one last."""
        for layer in self.layers:
            yield from (owner for owner in layer.owners() if isinstance(owner, Norm))
        yield self.final_norm

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
            yield from layer.owners()
