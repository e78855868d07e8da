"""What a model computes, as GGUF's metadata; `octavo.models.gguf.make_config` is the inverse.

GGUF leaves much unsaid that its architecture's name implies, so a model that departs from what is implied is refused.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from octavo.core.errors import UnsupportedModel
from octavo.models.rope import make_rope
from octavo.models.spec import LayerSpec, ModelSpec, RopeSpec
from octavo.ops.base import Activation

#: Family -> GGUF architecture.
ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "gemma3": "gemma3",
}
#: llama.cpp's own rotation works on neighbouring pairs there, so rows of q and k are reordered.
PAIRED_ROTATION = frozenset({"llama"})
_GEMMA_PATTERN = 6
#: Only this Gemma scales queries by hidden / heads; GGUF does not say so, engines know it by its layers.
_GEMMA_27B_LAYERS = 62
_LLAMA3_PARAMETERS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192.0}


def architecture_of(spec: ModelSpec) -> str:
    """GGUF's architecture for the family. Raises `UnsupportedModel` for one without."""
    if spec.family not in ARCHITECTURES:
        raise UnsupportedModel(f"GGUF export knows {', '.join(ARCHITECTURES)}; this model is {spec.family}")
    return ARCHITECTURES[spec.family]


def model_metadata(spec: ModelSpec) -> dict[str, Any]:
    """Keys `<architecture>.*` and their values. Raises `UnsupportedModel` naming what GGUF cannot say."""
    architecture = architecture_of(spec)
    _check_implied(spec, architecture)
    fields: dict[str, Any] = {
        "block_count": spec.num_layers,
        "context_length": spec.max_position_embeddings,
        "embedding_length": spec.hidden_size,
        "feed_forward_length": spec.intermediate_size,
        "vocab_size": spec.vocab_size,
        "attention.head_count": spec.num_heads,
        "attention.head_count_kv": spec.num_kv_heads,
        "attention.key_length": spec.head_dim,
        "attention.value_length": spec.head_dim,
        "attention.layer_norm_rms_epsilon": spec.norm_eps,
        "rope.dimension_count": spec.head_dim,
    }
    fields |= _gemma_fields(spec) if architecture == "gemma3" else _uniform_fields(spec, architecture)
    fields |= _expert_fields(spec, architecture)
    return {f"{architecture}.{key}": value for key, value in fields.items()}


def rope_divisors(spec: ModelSpec) -> Tensor | None:
    """Llama 3.1's rotation, which GGUF stores as a tensor of divisors `[head_dim / 2]`; None for any other."""
    rope = spec.layers[0].rope
    if rope.kind != "llama3":
        return None
    plain = make_rope(RopeSpec(rope.theta, rope.rotary_dim)).inverse_frequencies
    return plain / make_rope(rope).inverse_frequencies


def _refuse(what: str) -> UnsupportedModel:
    return UnsupportedModel(f"GGUF export: {what}")


def _check_implied(spec: ModelSpec, architecture: str) -> None:
    gemma = architecture == "gemma3"
    if spec.activation is not (Activation.GELU_TANH if gemma else Activation.SILU):
        raise _refuse(f"architecture {architecture} has no activation {spec.activation.value}")
    if architecture != "llama" and (spec.output_bias or spec.mlp_bias or (spec.qkv_bias and architecture != "qwen2")):
        raise _refuse(f"architecture {architecture} has no such biases")
    is_27b = gemma and spec.num_layers == _GEMMA_27B_LAYERS
    implied = (spec.hidden_size // spec.num_heads if is_27b else spec.head_dim) ** -0.5
    if abs(spec.attention_scale / implied - 1) > 1e-6:
        raise _refuse(
            f"queries are scaled by {spec.attention_scale:.6g}, architecture {architecture} implies {implied:.6g}"
        )
    if spec.logit_softcap is not None and not gemma:
        raise _refuse(f"architecture {architecture} has no logit softcap")
    if spec.attention_softcap is not None:
        raise _refuse(f"architecture {architecture} has no attention softcap")


def _uniform_fields(spec: ModelSpec, architecture: str) -> dict[str, Any]:
    """Families whose layers are alike."""
    first = spec.layers[0]
    if any((layer.window, layer.rope) != (first.window, first.rope) for layer in spec.layers):
        raise _refuse(f"layers differ in window or rotation, in architecture {architecture} they do not")
    if first.window is None:
        return _rope_fields(first.rope)
    if architecture != "llama":
        raise _refuse(f"architecture {architecture} has no sliding window; this model's is {first.window}")
    return {"attention.sliding_window": first.window, **_rope_fields(first.rope)}


def _gemma_fields(spec: ModelSpec) -> dict[str, Any]:
    """Every `pattern`-th layer sees everything and has its own rotation; the others have a window."""
    full = [layer for layer in spec.layers if layer.window is None]
    local = [layer for layer in spec.layers if layer.window is not None]
    if not local or len(set(full)) > 1 or len(set(local)) > 1 or local[0].rope.kind != "default":
        raise _refuse("layers must be of two kinds, and those with a window have a plain rotation")
    pattern = _pattern(spec.layers)
    fields = {
        "attention.sliding_window": local[0].window,
        "rope.freq_base_swa": local[0].rope.theta,
        **_rope_fields((full or local)[0].rope),
    }
    if pattern != _GEMMA_PATTERN:
        fields["attention.sliding_window_pattern"] = pattern
    if spec.logit_softcap is not None:
        fields["final_logit_softcapping"] = spec.logit_softcap
    return fields


def _pattern(layers: tuple[LayerSpec, ...]) -> int:
    full = [index for index, layer in enumerate(layers) if layer.window is None]
    for pattern in (_GEMMA_PATTERN, *range(1, len(layers) + 2)):
        if full == [index for index in range(len(layers)) if (index + 1) % pattern == 0]:
            return pattern
    raise _refuse(f"layers {full} see all positions, which is not every n-th layer")


def _rope_fields(rope: RopeSpec) -> dict[str, Any]:
    fields: dict[str, Any] = {"rope.freq_base": rope.theta}
    given = dict(rope.parameters)
    if rope.kind == "default":
        return fields
    if rope.kind == "llama3":
        for name, known in _LLAMA3_PARAMETERS.items():
            if given.get(name) != known:
                raise _refuse(f"rope {name} is {given.get(name)}, Octavo reads {known} back")
        return fields
    if rope.kind not in ("linear", "yarn"):
        raise _refuse(f"there is no rotation of kind {rope.kind}")
    keys = {"factor": "factor"}
    if rope.kind == "yarn":
        keys |= {"original_max_position_embeddings": "original_context_length",
                 "beta_fast": "yarn_beta_fast", "beta_slow": "yarn_beta_slow"}  # fmt: skip
    for name in given.keys() - keys.keys():
        raise _refuse(f"there is no key for rope {name} ({given[name]})")
    fields["rope.scaling.type"] = rope.kind
    for name, value in given.items():
        number = int(value) if name == "original_max_position_embeddings" else value
        fields[f"rope.scaling.{keys[name]}"] = number
    return fields


def _expert_fields(spec: ModelSpec, architecture: str) -> dict[str, Any]:
    first = spec.layers[0].experts
    if any(layer.experts != first for layer in spec.layers):
        raise _refuse("layers with and without experts in one model")
    if first is None:
        return {}
    if not first.renormalize:
        raise _refuse(
            "llama.cpp makes the weights of the chosen experts sum to 1, this model does not (norm_topk_prob)"
        )
    fields = {"expert_count": first.num_experts, "expert_used_count": first.experts_per_token}
    return fields if architecture == "llama" else fields | {"expert_feed_forward_length": first.intermediate_size}
