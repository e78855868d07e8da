"""Llama 1 to 3.x, SmolLM2 and others that call themselves Llama."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.models.config import ConfigReader
from octavo.models.dense import read_activation, read_rotation, read_sizes, uniform_layers
from octavo.models.spec import ModelSpec

ARCHITECTURES = ("LlamaForCausalLM",)
MODEL_TYPES = ("llama",)


def read_config(config: Mapping[str, Any]) -> ModelSpec:
    """Raises `UnsupportedModel` for a field that is not understood."""
    reader = ConfigReader(config)
    sizes = read_sizes(reader)
    attention_bias = reader.flag("attention_bias")
    reader.whole("pretraining_tp", 1)  # slices the same products for training; the function computed is the same
    spec = ModelSpec(
        family="llama",
        **sizes,
        layers=uniform_layers(reader.whole("num_hidden_layers"), read_rotation(reader, sizes)),
        activation=read_activation(reader),
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=reader.flag("mlp_bias"),
        tied_embedding=reader.flag("tie_word_embeddings"),
    )
    reader.finish()
    return spec
