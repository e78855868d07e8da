"""Qwen2 and Qwen2.5: biases on q, k and v; windows only on the upper layers, and only when switched on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.models.config import ConfigReader
from octavo.models.dense import read_activation, read_optional_windows, read_rotation, read_sizes
from octavo.models.spec import LayerSpec, ModelSpec

ARCHITECTURES = ("Qwen2ForCausalLM",)
MODEL_TYPES = ("qwen2",)


def read_config(config: Mapping[str, Any]) -> ModelSpec:
    """Raises `UnsupportedModel` for a field that is not understood."""
    reader = ConfigReader(config)
    sizes = read_sizes(reader)
    rope = read_rotation(reader, sizes)
    windows = read_optional_windows(reader, reader.whole("num_hidden_layers"))
    spec = ModelSpec(
        family="qwen2",
        **sizes,
        layers=tuple(LayerSpec(window, rope) for window in windows),
        activation=read_activation(reader),
        qkv_bias=True,
        tied_embedding=reader.flag("tie_word_embeddings"),
    )
    reader.finish()
    return spec
