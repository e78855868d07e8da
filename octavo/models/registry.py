"""Which family reads which config."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from octavo.core.errors import UnsupportedModel
from octavo.models import gemma3, llama, mistral, mixtral, qwen2, qwen3, qwen3_moe
from octavo.models.spec import ModelSpec

_FAMILIES: tuple[ModuleType, ...] = (llama, mistral, mixtral, qwen2, qwen3, qwen3_moe, gemma3)


def read_spec(config: Mapping[str, Any]) -> ModelSpec:
    """A Hugging Face config dict -> what the model computes. Raises `UnsupportedModel` naming field and value."""
    architectures = config.get("architectures") or []
    model_type = config.get("model_type")
    for family in _FAMILIES:
        if architectures and set(architectures) <= set(family.ARCHITECTURES):
            if model_type is not None and model_type not in family.MODEL_TYPES:
                break
            return family.read_config(config)
        if not architectures and model_type in family.MODEL_TYPES:
            return family.read_config(config)
    known = ", ".join(name for family in _FAMILIES for name in family.ARCHITECTURES)
    raise UnsupportedModel(
        f"config field architectures is {architectures!r} and model_type is {model_type!r}: known are {known}"
    )
