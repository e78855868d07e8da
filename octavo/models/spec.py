"""`ModelSpec`: a model's config, understood. Plain numbers; no torch, no tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from octavo.ops.base import Activation


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary positions as the config asks for them; `octavo.models.rope.make_rope` turns it into numbers.

    `kind` is one of `default`, `linear`, `dynamic`, `llama3`, `yarn`; `parameters` are that kind's own settings
    under Hugging Face's names (`factor`, `low_freq_factor`, `beta_fast`, ...).
    """

    theta: float
    rotary_dim: int
    kind: str = "default"
    parameters: tuple[tuple[str, float], ...] = ()

    def get(self, name: str, default: float) -> float:
        return dict(self.parameters).get(name, default)


@dataclass(frozen=True, slots=True)
class ExpertsSpec:
    """A layer's mixture of experts: each token uses `experts_per_token` of `num_experts` MLPs of `intermediate_size`
    features; `renormalize` makes the weights of the chosen ones sum to 1."""

    num_experts: int
    experts_per_token: int
    intermediate_size: int
    renormalize: bool


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """What differs from layer to layer: `window` (None sees all positions before), the rotation, and whether the MLP
    is a mixture of `experts` (None: one dense MLP)."""

    window: int | None
    rope: RopeSpec
    experts: ExpertsSpec | None = None


@dataclass(frozen=True, slots=True)
class ModuleNames:
    """A checkpoint's module names; those of a layer stand under `model.layers.<index>.`. Tensors are
    `<module>.weight` and `<module>.bias`. None: the family has no such module. `expert_gate` and its like stand under
    `<experts>.<expert>.`."""

    embedding: str = "model.embed_tokens"
    final_norm: str = "model.norm"
    head: str = "lm_head"
    layer: str = "model.layers.{index}"
    input_norm: str = "input_layernorm"
    attention_output_norm: str | None = None
    mlp_norm: str = "post_attention_layernorm"
    mlp_output_norm: str | None = None
    q_norm: str | None = None
    k_norm: str | None = None
    q: str = "self_attn.q_proj"
    k: str = "self_attn.k_proj"
    v: str = "self_attn.v_proj"
    o: str = "self_attn.o_proj"
    gate: str = "mlp.gate_proj"
    up: str = "mlp.up_proj"
    down: str = "mlp.down_proj"
    experts: str = "mlp.experts"
    router: str = "mlp.gate"
    expert_gate: str = "gate_proj"
    expert_up: str = "up_proj"
    expert_down: str = "down_proj"

    def in_layer(self, index: int, module: str) -> str:
        return f"{self.layer.format(index=index)}.{module}"

    def of_expert(self, index: int, expert: int, module: str) -> str:
        return self.in_layer(index, f"{self.experts}.{expert}.{module}")


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder. Sizes count features or tokens; `attention_scale` multiplies q.k; `intermediate_size` is that of
    dense MLPs (experts have their own).

    `norm_offset` is added to every norm weight at load (Gemma stores w of 1 + w); `tied_embedding` means the head's
    matrix is the embedding's; softcaps are `cap * tanh(x / cap)`, None is off. `max_position_embeddings` is the
    context the model states.
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    norm_eps: float
    attention_scale: float
    layers: tuple[LayerSpec, ...]
    activation: Activation = Activation.SILU
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    norm_offset: float = 0.0
    embedding_multiplier: float = 1.0
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    tied_embedding: bool = False
    names: ModuleNames = field(default_factory=ModuleNames)

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def widest_mlp(self) -> int:
        """Features of the widest MLP that some layer has, dense or expert."""
        return max(self.mlp_size(index) for index in range(self.num_layers))

    def mlp_size(self, index: int) -> int:
        """Features of layer `index`'s MLP, or of each of its experts."""
        experts = self.layers[index].experts
        return self.intermediate_size if experts is None else experts.intermediate_size

    def splits_inputs(self, module: str) -> bool:
        """Whether tensor parallelism shards this linear's inputs (o, down), and not its outputs."""
        return module.endswith((self.names.o, self.names.down, self.names.expert_down))

    def linear_names(self, index: int) -> Iterator[str]:
        """Module names of layer `index`'s linears in the order they are computed; a router is not among them."""
        names, experts = self.names, self.layers[index].experts
        yield from (names.in_layer(index, module) for module in (names.q, names.k, names.v, names.o))
        if experts is None:
            yield from (names.in_layer(index, module) for module in (names.gate, names.up, names.down))
            return
        for expert in range(experts.num_experts):
            for module in (names.expert_gate, names.expert_up, names.expert_down):
                yield names.of_expert(index, expert, module)
