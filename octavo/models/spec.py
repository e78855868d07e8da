"""`ModelSpec`: a model's config, understood. Plain numbers; no torch, no tensors."""

from __future__ import annotations

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
class LayerSpec:
    """What differs from layer to layer: `window` (None sees all positions before) and the rotation."""

    window: int | None
    rope: RopeSpec


@dataclass(frozen=True, slots=True)
class ModuleNames:
    """A checkpoint's module names; those of a layer stand under `model.layers.<index>.`. Tensors are
    `<module>.weight` and `<module>.bias`. None: the family has no such module."""

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

    def in_layer(self, index: int, module: str) -> str:
        return f"{self.layer.format(index=index)}.{module}"


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A dense decoder. Sizes count features or tokens; `attention_scale` multiplies q.k.

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
