"""Mistral 7B and its kin: Llama with a sliding window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.models.config import ConfigReader
from octavo.models.dense import read_activation, read_rotation, read_sizes, uniform_layers
from octavo.models.spec import ModelSpec

ARCHITECTURES = ("MistralForCausalLM",)
MODEL_TYPES = ("mistral",)


def read_config(config: Mapping[str, Any]) -> ModelSpec:
    """Raises `UnsupportedModel` for a field that is not understood."""
    reader = ConfigReader(config)
    sizes = read_sizes(reader)
    # transformers' default of 4096 applies where the field is absent; null switches the window off.
    window = 4096 if "sliding_window" not in config else None
    if reader.take("sliding_window") is not None:
        window = reader.whole("sliding_window")
    spec = ModelSpec(
        family="mistral",
        **sizes,
        layers=uniform_layers(reader.whole("num_hidden_layers"), read_rotation(reader, sizes), window),
        activation=read_activation(reader),
        tied_embedding=reader.flag("tie_word_embeddings"),
    )
    reader.finish()
    return spec
