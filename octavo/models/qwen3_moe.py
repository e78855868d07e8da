"""Qwen3 with a mixture of experts: an RMS norm on every q and k head, experts in all layers or in some of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.models.config import ConfigReader
from octavo.models.dense import read_activation, read_rotation, read_sizes
from octavo.models.experts import read_experts
from octavo.models.spec import ExpertsSpec, LayerSpec, ModelSpec, ModuleNames

ARCHITECTURES = ("Qwen3MoeForCausalLM",)
MODEL_TYPES = ("qwen3_moe",)


def read_config(config: Mapping[str, Any]) -> ModelSpec:
    """Raises `UnsupportedModel` for a field that is not understood."""
    reader = ConfigReader(config)
    sizes = read_sizes(reader)
    rope, window = read_rotation(reader, sizes), _read_window(reader)
    attention_bias = reader.flag("attention_bias")
    spec = ModelSpec(
        family="qwen3_moe",
        **sizes,
        layers=tuple(LayerSpec(window, rope, experts) for experts in _read_layers(reader)),
        activation=read_activation(reader),
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        tied_embedding=reader.flag("tie_word_embeddings"),
        names=ModuleNames(q_norm="self_attn.q_norm", k_norm="self_attn.k_norm"),
    )
    reader.finish()
    return spec


def _read_layers(reader: ConfigReader) -> list[ExpertsSpec | None]:
    """Layer i is a mixture unless `mlp_only_layers` names it or i + 1 is no multiple of `decoder_sparse_step`."""
    num_layers = reader.whole("num_hidden_layers")
    dense = reader.take("mlp_only_layers", [])
    if not isinstance(dense, list) or not set(dense) <= set(range(num_layers)):
        reader.refuse("mlp_only_layers", f"a list of layer numbers below {num_layers} is needed")
    step = reader.whole("decoder_sparse_step", 1)
    experts = read_experts(
        reader,
        intermediate_size=reader.whole("moe_intermediate_size", 768),
        renormalize=reader.flag("norm_topk_prob"),
        default_experts=128,
        default_per_token=8,
    )
    return [None if index in dense or (index + 1) % step else experts for index in range(num_layers)]


def _read_window(reader: ConfigReader) -> int | None:
    """Off unless `use_sliding_window`; then for all layers, as in transformers, which reads no `max_window_layers`."""
    first = reader.take("max_window_layers")
    window = reader.whole("sliding_window", 4096) if reader.flag("use_sliding_window") else None
    reader.take("sliding_window")
    if window is not None and first not in (None, 0):
        reader.refuse("max_window_layers", "with use_sliding_window, this family has a window in all layers or in none")
    return window
