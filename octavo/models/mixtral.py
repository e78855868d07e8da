"""Mixtral: every layer's MLP is a mixture of experts, and the weights of a token's experts sum to 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.models.config import ConfigReader
from octavo.models.dense import read_activation, read_rotation, read_sizes
from octavo.models.experts import read_experts
from octavo.models.spec import LayerSpec, ModelSpec, ModuleNames

ARCHITECTURES = ("MixtralForCausalLM",)
MODEL_TYPES = ("mixtral",)

_NAMES = ModuleNames(
    experts="block_sparse_moe.experts",
    router="block_sparse_moe.gate",
    expert_gate="w1",
    expert_up="w3",
    expert_down="w2",
)


def read_config(config: Mapping[str, Any]) -> ModelSpec:
    """Raises `UnsupportedModel` for a field that is not understood."""
    reader = ConfigReader(config)
    sizes = read_sizes(reader, default_norm_eps=1e-5)
    window = reader.whole("sliding_window") if reader.take("sliding_window") is not None else None
    experts = read_experts(
        reader,
        intermediate_size=sizes["intermediate_size"],
        renormalize=True,
        default_experts=8,
        default_per_token=2,
    )
    layer = LayerSpec(window, read_rotation(reader, sizes, default_theta=1e6), experts)
    spec = ModelSpec(
        family="mixtral",
        **sizes,
        layers=(layer,) * reader.whole("num_hidden_layers"),
        activation=read_activation(reader),
        tied_embedding=reader.flag("tie_word_embeddings"),
        names=_NAMES,
    )
    reader.finish()
    return spec
