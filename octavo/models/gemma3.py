"""Gemma 3, text only: norms before and after each half layer, norm weights stored as w of 1 + w, q/k head norms,
alternating windows with their own rope base, embedding times sqrt(hidden size)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.core.errors import UnsupportedModel
from octavo.models.config import ConfigReader
from octavo.models.dense import read_activation, read_layer_types, read_sizes
from octavo.models.rope import parse_rope
from octavo.models.spec import LayerSpec, ModelSpec, ModuleNames, RopeSpec

ARCHITECTURES = ("Gemma3ForCausalLM",)
MODEL_TYPES = ("gemma3_text",)

_NAMES = ModuleNames(
    attention_output_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    mlp_output_norm="post_feedforward_layernorm",
    q_norm="self_attn.q_norm",
    k_norm="self_attn.k_norm",
)


def read_config(config: Mapping[str, Any]) -> ModelSpec:
    """Raises `UnsupportedModel` for a field that is not understood."""
    reader = ConfigReader(config)
    sizes = read_sizes(reader, default_head_dim=256)
    sizes["attention_scale"] = reader.number("query_pre_attn_scalar", 256) ** -0.5
    attention_bias = reader.flag("attention_bias")
    if reader.take("hidden_act") is not None and reader.take("hidden_activation") is None:
        reader.refuse("hidden_act", "Gemma 3 states hidden_activation; this older field is ambiguous")
    if reader.take("attn_logit_softcapping") is not None:
        reader.refuse("attn_logit_softcapping", "Gemma 3 has no attention softcap; transformers ignores the field")
    spec = ModelSpec(
        family="gemma3",
        **sizes,
        layers=_read_layers(reader, sizes),
        activation=read_activation(reader, "hidden_activation", "gelu_pytorch_tanh"),
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        norm_offset=1.0,
        embedding_multiplier=sizes["hidden_size"] ** 0.5,
        logit_softcap=reader.softcap("final_logit_softcapping"),
        tied_embedding=reader.flag("tie_word_embeddings", True),
        names=_NAMES,
    )
    reader.finish()
    return spec


def _read_layers(reader: ConfigReader, sizes: dict[str, Any]) -> tuple[LayerSpec, ...]:
    num_layers = reader.whole("num_hidden_layers")
    pattern = reader.whole("sliding_window_pattern", reader.whole("_sliding_window_pattern", 6))
    default = ["full_attention" if (index + 1) % pattern == 0 else "sliding_attention" for index in range(num_layers)]
    layer_types = read_layer_types(reader, num_layers, default)
    window = reader.whole("sliding_window", 4096)
    ropes = _read_ropes(reader, sizes)
    return tuple(LayerSpec(window if kind == "sliding_attention" else None, ropes[kind]) for kind in layer_types)


def _read_ropes(reader: ConfigReader, sizes: dict[str, Any]) -> dict[str, RopeSpec]:
    """`rope_parameters` by layer type (transformers 5), or `rope_theta`, `rope_scaling` (full layers only) and
    `rope_local_base_freq`."""
    nested = reader.take("rope_parameters", {})
    fields = {
        "full_attention": {"rope_theta": reader.number("rope_theta", 1e6), **reader.take("rope_scaling", {})},
        "sliding_attention": {"rope_theta": reader.number("rope_local_base_freq", 1e4)},
    }
    unknown = nested.keys() - fields.keys()
    if unknown:
        raise UnsupportedModel(f"config field rope_parameters.{min(unknown)}: expected one entry for each layer type")
    return {
        kind: parse_rope({**fields[kind], **nested.get(kind, {})}, sizes["head_dim"], sizes["max_position_embeddings"])
        for kind in fields
    }
