"""The op set: the dozen operations every model is written in, and what an executor must give.

A model's forward pass calls these and nothing else. Values (`X`) are opaque: the reference executor passes torch
tensors `[rows, features]`, a recording executor passes symbols. Rows are the step's tokens, chunk after chunk.
Values support `+` (residual additions); everything else is an op.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from torch import Tensor

from octavo.core.step import Step
from octavo.numerics.activations import InputQuantizer
from octavo.numerics.kv_scales import KvScales
from octavo.numerics.quantized_tensor import QuantizedTensor

#: A value flowing between ops: a torch tensor for the reference, a symbol for a recorder.
X = Any


class Activation(StrEnum):
    """Gate activations: x * sigmoid(x), and the tanh form of GELU (Gemma)."""

    SILU = "silu"
    GELU_TANH = "gelu_tanh"


@dataclass(frozen=True, slots=True)
class Norm:
    """RMS norm: x / sqrt(mean(x^2) + eps) * weight, in float32. `weight` already holds the whole factor
    (a Gemma norm's `1 + w` is added at load)."""

    name: str
    weight: Tensor
    eps: float


@dataclass(frozen=True, slots=True)
class Linear:
    """y = x @ weight.T + bias; `weight` `[outputs, inputs]`, dense or quantized; `name` is the checkpoint's module
    name, e.g. `model.layers.3.self_attn.q_proj`. `inputs` rounds x first (W8A8, FP8 with quantized activations)."""

    name: str
    weight: Tensor | QuantizedTensor
    bias: Tensor | None = None
    inputs: InputQuantizer | None = None

    @property
    def num_outputs(self) -> int:
        return int(self.weight.shape[0])

    @property
    def num_inputs(self) -> int:
        return int(self.weight.shape[1])


@dataclass(frozen=True, slots=True)
class GatedMlp:
    """down(activation(gate(x)) * up(x)): three linears, `gate` and `up` of one shape."""

    gate: Linear
    up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class Experts:
    """A layer's mixture of experts: a router and MLPs of one shape, of which each row uses a few.

    `name` is the checkpoint's module name. `router` `[experts, hidden]` has no bias and is never quantized.
    `experts_per_token` is at most the number of `mlps`, which stand in the order of their ids. `renormalize` divides
    the chosen probabilities by their sum. `Ops.experts` says what is computed.
    """

    name: str
    router: Linear
    mlps: tuple[GatedMlp, ...]
    experts_per_token: int
    renormalize: bool
    activation: Activation

    @property
    def num_experts(self) -> int:
        return len(self.mlps)


@dataclass(frozen=True, slots=True)
class Embedding:
    """Token rows `[vocabulary, hidden]`, dense or packed, times `multiplier` (Gemma: sqrt(hidden))."""

    name: str
    weight: Tensor | QuantizedTensor
    multiplier: float = 1.0


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions. `inverse_frequencies` `[rotary_dim / 2]` float32; cos and sin are times `magnitude`
    (YaRN's attention factor). `dynamic` makes the base a function of the position alone, so that a token's
    rotation never depends on what else is in the step (see docs/decisions.md)."""

    inverse_frequencies: Tensor
    magnitude: float = 1.0
    dynamic: DynamicRope | None = None


@dataclass(frozen=True, slots=True)
class DynamicRope:
    """Dynamic NTK scaling: beyond `trained_positions` the base grows with position + 1."""

    base: float
    factor: float
    trained_positions: int


@dataclass(frozen=True, slots=True)
class Attention:
    """One layer's attention. `layer` indexes the KV storage; `window` None sees everything before, otherwise the
    last `window` positions including the token's own; `scale` multiplies q.k; `softcap` None is off. `kv_scales` come
    with a checkpoint that was calibrated for a quantized cache."""

    layer: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    softcap: float | None = None
    kv_scales: KvScales | None = None


class Ops(ABC):
    """The op set. `batch` below is the executor's own view of a `Step` and is passed through by models."""

    @abstractmethod
    def embed(self, embedding: Embedding, batch: Any) -> X:
        """Rows of the step's tokens `[rows, hidden]`."""

    @abstractmethod
    def norm(self, x: X, norm: Norm) -> X:
        """RMS norm over the last axis. `[rows, hidden]` -> same."""

    @abstractmethod
    def head_norm(self, x: X, norm: Norm, head_dim: int) -> X:
        """RMS norm over each head: x `[rows, heads * head_dim]` -> same (Qwen3, Gemma 3)."""

    @abstractmethod
    def linear(self, x: X, linear: Linear) -> X:
        """`[rows, inputs]` -> `[rows, outputs]`."""

    @abstractmethod
    def rope(self, x: X, rope: Rope, head_dim: int, batch: Any) -> X:
        """Rotate each head's first `rotary_dim` features (halves convention): x `[rows, heads * head_dim]`."""

    @abstractmethod
    def attend(self, q: X, k: X, v: X, attention: Attention, batch: Any) -> X:
        """Write k, v into the layer's blocks, then causal grouped-query attention over everything before.

        q `[rows, heads * head_dim]`, k and v `[rows, kv_heads * head_dim]` -> `[rows, heads * head_dim]`."""

    @abstractmethod
    def gated(self, gate: X, up: X, activation: Activation) -> X:
        """activation(gate) * up, `[rows, features]`."""

    def mlp(self, x: X, mlp: GatedMlp, activation: Activation) -> X:
        """down(activation(gate(x)) * up(x)), `[rows, hidden]` -> same."""
        gate, up = self.linear(x, mlp.gate), self.linear(x, mlp.up)
        return self.linear(self.gated(gate, up, activation), mlp.down)

    @abstractmethod
    def experts(self, x: X, experts: Experts) -> X:
        """A sparse mixture of gated MLPs (Shazeer et al. 2017; Mixtral, Jiang et al. 2024, section 2.1).

        `[rows, hidden]` -> same. Every row by itself, in float32:
        1. logits = x @ router.T, `[experts]`; probabilities = softmax(logits) over all experts.
        2. The `experts_per_token` experts of the largest logits are chosen; equal logits: the lowest id first.
        3. From here on the chosen ones stand in ascending order of id: e_1 < e_2 < ... < e_k.
        4. weight_i = probability of e_i; with `renormalize` divided by ((weight_1 + weight_2) + ...) + weight_k.
        5. y_i = mlps[e_i].down(activation(mlps[e_i].gate(x)) * mlps[e_i].up(x)), `[hidden]`.
        6. y = ((weight_1 * y_1 + weight_2 * y_2) + ...) + weight_k * y_k, left to right.

        Rows may be grouped by expert for speed, if no row's bits depend on which others share its expert: visiting
        experts by ascending id and adding each one's result to its rows gives the order of 6. Choosing by logits
        instead of probabilities (softmax keeps their order) makes the choice independent of how `exp` rounds. The
        router's product must be as exact as the executor can: its rounding decides which experts run."""

    @abstractmethod
    def logits(self, x: X, head: Linear, softcap: float | None, batch: Any) -> X:
        """Next-token logits of the rows the step asks for: `[logit rows, vocabulary]` float32."""


class Model(Protocol):
    """What an executor needs of a model (made in `models`)."""

    @property
    def attention_layers(self) -> list[Attention]: ...

    @property
    def vocab_size(self) -> int: ...

    def forward(self, ops: Ops, batch: Any) -> X:
        """The whole pass over the op set; returns `ops.logits(...)`."""
        ...


class Executor(ABC):
    """Computes steps. Owns the storage of keys and values, `num_blocks` blocks of `block_size` positions."""

    block_size: int
    num_blocks: int

    @abstractmethod
    def execute(self, step: Step) -> Tensor:
        """Float32 logits `[step.num_logit_rows, vocabulary]` in chunk order. A row's bits depend on nothing but
        its own sequence's tokens: not on the batch, the chunking or which blocks hold the past. Valid until the next
        call, which may overwrite them."""
