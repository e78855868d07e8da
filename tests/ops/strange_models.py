"""Forward passes that no family has but the op set allows: what patterns must leave alone or take with care.

Each is given tensors by `StrangeWeights`; they run on any executor, as models do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from octavo.ops.base import Activation, Attention, Embedding, Linear, Norm, Ops, Rope, X

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 64, 4, 2, 16, 96


class StrangeModel:
    """One embedding, one oddly wired layer or two, one head."""

    def __init__(self, layer: Callable[[StrangeModel, Ops, X, Any], X], num_layers: int = 2) -> None:
        self._generator = torch.Generator().manual_seed(7)
        self._owners: dict[str, Any] = {}
        self._layer = layer
        self._num_layers = num_layers
        self.index = 0

    @property
    def attention_layers(self) -> list[Attention]:
        return [self.attention_of(index) for index in range(self._num_layers)]

    @property
    def vocab_size(self) -> int:
        return VOCABULARY

    def forward(self, ops: Ops, batch: Any) -> X:
        table = self.random("embedding", VOCABULARY, HIDDEN)
        x = ops.embed(Embedding("embedding", table), batch)
        for index in range(self._num_layers):
            self.index = index
            x = self._layer(self, ops, x, batch)
        return ops.logits(x, self.linear("head", HIDDEN, VOCABULARY), 20.0, batch)

    def attention_of(self, index: int) -> Attention:
        return Attention(index, HEADS, KV_HEADS, HEAD_DIM, HEAD_DIM**-0.5)

    def random(self, name: str, *shape: int) -> Tensor:
        return self._once(f"tensor {name}", lambda: torch.randn(shape, generator=self._generator) * 0.3)

    def linear(self, name: str, inputs: int = HIDDEN, outputs: int = HIDDEN) -> Linear:
        name = f"layers.{self.index}.{name}" if name != "head" else name
        return self._once(f"linear {name}", lambda: Linear(name, self.random(name, outputs, inputs)))

    def norm(self, name: str, features: int = HIDDEN) -> Norm:
        name = f"layers.{self.index}.{name}"
        return self._once(f"norm {name}", lambda: Norm(name, 1.0 + self.random(name, features), 1e-5))

    def rope(self) -> Rope:
        frequencies = 1.0 / 100.0 ** (torch.arange(0, HEAD_DIM // 2, 2) / (HEAD_DIM // 2))
        return self._once("rope", lambda: Rope(frequencies, 1.25))

    def qkv(self, ops: Ops, x: X) -> tuple[X, X, X]:
        kv = KV_HEADS * HEAD_DIM
        outputs = (("q", HEADS * HEAD_DIM), ("k", kv), ("v", kv))
        q, k, v = (ops.linear(x, self.linear(name, HIDDEN, size)) for name, size in outputs)
        return q, k, v

    def attend(self, ops: Ops, q: X, k: X, v: X, batch: Any) -> X:
        return ops.attend(q, k, v, self.attention_of(self.index), batch)

    def _once(self, key: str, make: Callable[[], Any]) -> Any:
        if key not in self._owners:
            self._owners[key] = make()
        return self._owners[key]


def parallel_halves(model: StrangeModel, ops: Ops, x: X, batch: Any) -> X:
    """Attention and MLP of one norm, both added at the end; nothing between them but the residual."""
    h = ops.norm(x, model.norm("norm"))
    attention = ops.linear(model.attend(ops, *model.qkv(ops, h), batch), model.linear("o"))
    gated = ops.gated(ops.linear(h, model.linear("gate")), ops.linear(h, model.linear("up")), Activation.GELU_TANH)
    return x + (attention + ops.linear(gated, model.linear("down")))


def residual_read_again(model: StrangeModel, ops: Ops, x: X, batch: Any) -> X:
    """The old residual is needed after it has been added to, once before and once behind the addition."""
    gate = ops.linear(x, model.linear("gate"))
    h = x + ops.linear(ops.norm(x, model.norm("norm")), model.linear("first"))
    h = h + ops.linear(model.attend(ops, *model.qkv(ops, h), batch), model.linear("o"))
    gated = ops.gated(gate, ops.linear(x, model.linear("up")), Activation.SILU)
    return h + (ops.linear(gated, model.linear("down")) + (x + x))


def rotated_before_norm(model: StrangeModel, ops: Ops, x: X, batch: Any) -> X:
    """Heads are normed after the rotation; keys are read once more by another linear, before and after both."""
    q, k, v = model.qkv(ops, x)
    norms = (model.norm("q_norm", HEAD_DIM), model.norm("k_norm", HEAD_DIM))
    rotated, plain = ops.rope(k, model.rope(), HEAD_DIM, batch), k
    normed = ops.head_norm(rotated, norms[1], HEAD_DIM)
    q = ops.head_norm(ops.rope(q, model.rope(), HEAD_DIM, batch), norms[0], HEAD_DIM)
    features = KV_HEADS * HEAD_DIM
    h = x + ops.linear(model.attend(ops, q, normed, v, batch), model.linear("o"))
    return h + (ops.linear(plain, model.linear("a", features)) + ops.linear(rotated, model.linear("b", features)))


def queries_without_rotation(model: StrangeModel, ops: Ops, x: X, batch: Any) -> X:
    """Only keys are rotated and normed, values come from another input; the same layer's output is used twice."""
    h = ops.norm(x, model.norm("norm"))
    q, k, _ = model.qkv(ops, h)
    v = ops.linear(x, model.linear("other_v", HIDDEN, KV_HEADS * HEAD_DIM))
    k = ops.rope(ops.head_norm(k, model.norm("k_norm", HEAD_DIM), HEAD_DIM), model.rope(), HEAD_DIM, batch)
    attended = model.attend(ops, q, k, v, batch)
    return ops.gated(attended, ops.linear(attended, model.linear("o")), Activation.SILU) + x


STRANGE = (parallel_halves, residual_read_again, rotated_before_norm, queries_without_rotation)
