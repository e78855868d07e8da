"""Tiny random Hugging Face checkpoints made with transformers, one for each family Octavo reads.

    directory = make_tiny("qwen3", tmp_path / "model")

Weights are float32, seeded by the family's name, and large enough that a wrong norm, bias or rotation shows.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import torch

#: Sizes that differ from one another, so that a swapped axis cannot go unseen.
_COMMON: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.2,
}

#: family -> (transformers model class, transformers config class, settings)
_FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", {"tie_word_embeddings": False}),
    "llama-tied": ("LlamaForCausalLM", "LlamaConfig", {"tie_word_embeddings": True}),
    "llama-bias": ("LlamaForCausalLM", "LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
    "mistral": ("MistralForCausalLM", "MistralConfig", {"sliding_window": 24}),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", {"head_dim": None, "tie_word_embeddings": False}),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {"tie_word_embeddings": True}),
    "mixtral": (
        "MixtralForCausalLM",
        "MixtralConfig",
        {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 24},
    ),
    "qwen3-moe": (
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 64, "mlp_only_layers": [1]},
    ),
    "gemma3": (
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
            "sliding_window": 24,
            "query_pre_attn_scalar": 20,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0},
            },
        },
    ),
}

FAMILIES = tuple(_FAMILIES)


def make_tiny(family: str, directory: Path, **config_overrides: Any) -> Path:
    """Write a tiny random checkpoint of one of `FAMILIES` into `directory` (made if absent) and return it.

    `config_overrides` are fields of the transformers config. The directory holds config.json,
    generation_config.json, model.safetensors and a byte-level tokenizer with a ChatML template.
    """
    make_tiny_model(family, **config_overrides).save_pretrained(directory)
    _save_tokenizer(Path(directory))
    return Path(directory)


def make_tiny_model(family: str, **config_overrides: Any) -> Any:
    """The transformers model that `make_tiny` saves, in eval mode."""
    import transformers

    model_class, config_class, settings = _FAMILIES[family]
    fields = {**_COMMON, **settings, **config_overrides}
    config = getattr(transformers, config_class)(**{key: value for key, value in fields.items() if value is not None})
    config._attn_implementation = "eager"
    with torch.random.fork_rng():
        torch.manual_seed(zlib.crc32(family.encode()))
        model = getattr(transformers, model_class)(config)
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                offset = 0.0 if family == "gemma3" or name.endswith("bias") else 1.0
                parameter.data = offset + 0.3 * torch.randn(parameter.shape)
    return model.eval()


def edit_config(directory: Path, **fields: Any) -> Path:
    """Overwrite fields of `directory`/config.json; `None` values are written as null."""
    path = Path(directory) / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}, indent=2))
    return Path(directory)


def _save_tokenizer(directory: Path) -> None:
    from tests.tokenizers import make_byte_tokenizer

    make_byte_tokenizer(directory)
