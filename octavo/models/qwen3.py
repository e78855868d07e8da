"""Qwen3 (dense): an RMS norm on every q and k head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.models.config import ConfigReader
from octavo.models.dense import read_activation, read_optional_windows, read_rotation, read_sizes
from octavo.models.spec import LayerSpec, ModelSpec, ModuleNames

ARCHITECTURES = ("Qwen3ForCausalLM",)
MODEL_TYPES = ("qwen3",)


def read_config(config: Mapping[str, Any]) -> ModelSpec:
    """Raises `UnsupportedModel` for a field that is not understood."""
    reader = ConfigReader(config)
    sizes = read_sizes(reader, default_head_dim=128)
    rope = read_rotation(reader, sizes)
    windows = read_optional_windows(reader, reader.whole("num_hidden_layers"))
    attention_bias = reader.flag("attention_bias")
    spec = ModelSpec(
        family="qwen3",
        **sizes,
        layers=tuple(LayerSpec(window, rope) for window in windows),
        activation=read_activation(reader),
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        tied_embedding=reader.flag("tie_word_embeddings"),
        names=ModuleNames(q_norm="self_attn.q_norm", k_norm="self_attn.k_norm"),
    )
    reader.finish()
    return spec
