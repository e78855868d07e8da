"""GGUF seen as a Hugging Face checkpoint: names, config, and llama.cpp's changes to the numbers undone.

What is undone: the row order of q and k (architecture `llama` only: its rotation works on neighbouring pairs there,
on halves here), the + 1 in Gemma's norm weights, and Llama 3.1's rotation divisors stored as a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from octavo.core.errors import CheckpointError, UnsupportedModel
from octavo.weights.checkpoint import Checkpoint
from octavo.weights.gguf_file import GgufFile

if TYPE_CHECKING:
    from octavo.text.tokenizer import Tokenizer

_ROPE_DIVISORS = "rope_freqs.weight"
#: GGUF architecture -> (Hugging Face architecture, model_type)
_ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", "llama"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
    "qwen3moe": ("Qwen3MoeForCausalLM", "qwen3_moe"),
    "gemma3": ("Gemma3ForCausalLM", "gemma3_text"),
}
_GLOBAL_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    # Experts are stacked, and their names are those of such a Hugging Face file (`StackedExperts`).
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}
_GEMMA_NAMES = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


class GgufCheckpoint(Checkpoint):
    """A `GgufFile` under Hugging Face names; `config` is what config.json would say."""

    def __init__(self, file: GgufFile) -> None:
        self.source = file.source
        self._file = file
        self._architecture = str(file.metadata.get("general.architecture"))
        if self._architecture not in _ARCHITECTURES:
            raise UnsupportedModel(
                f"{file.source}: general.architecture is {self._architecture!r}; known are {', '.join(_ARCHITECTURES)}"
            )
        self._stored_names = {self._translate(name): name for name in file.names() if name != _ROPE_DIVISORS}
        divisors = file.get(_ROPE_DIVISORS) if _ROPE_DIVISORS in file.names() else None
        self.config = make_config(file, self._architecture, divisors)

    def names(self) -> list[str]:
        return sorted(self._stored_names)

    def get(self, name: str) -> Tensor:
        tensor = self._file.get(self._stored_name(name))
        if self._architecture == "gemma3" and tensor.ndim == 1 and name.endswith("norm.weight"):
            return tensor.to(torch.float32) - 1.0
        if self._architecture == "llama" and ".q_proj." in name:
            return _restore_halves(tensor, self.config["num_attention_heads"])
        if self._architecture == "llama" and ".k_proj." in name:
            return _restore_halves(tensor, self.config["num_key_value_heads"])
        return tensor

    def get_matrix(self, name: str, index: int) -> Tensor:
        return self._file.get_matrix(self._stored_name(name), index)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._file.shape(self._stored_name(name))

    def tensor_bytes(self, name: str) -> int:
        return self._file.tensor_bytes(self._stored_name(name))

    def tensor_type(self, name: str) -> str:
        """ggml's name of the storage type, such as `Q4_K`."""
        return self._file.tensor_type(self._stored_name(name))

    @property
    def num_bytes(self) -> int:
        return self._file.num_bytes

    def tokenizer(self) -> Tokenizer:
        return self._file.tokenizer()

    def close(self) -> None:
        self._file.close()

    def _stored_name(self, name: str) -> str:
        if name not in self._stored_names:
            raise CheckpointError(f"{self.source}: has no tensor {name}")
        return self._stored_names[name]

    def _translate(self, name: str) -> str:
        module, _, kind = name.rpartition(".")
        if module in _GLOBAL_NAMES:
            return f"{_GLOBAL_NAMES[module]}.{kind}"
        parts = module.split(".", 2)
        layer_names = _LAYER_NAMES | (_GEMMA_NAMES if self._architecture == "gemma3" else {})
        if len(parts) == 3 and parts[0] == "blk" and parts[2] in layer_names:
            return f"model.layers.{parts[1]}.{layer_names[parts[2]]}.{kind}"
        return name  # unknown: the loader names it as a tensor that nothing uses


def _restore_halves(rows: Tensor, num_heads: int) -> Tensor:
    """Rows of each head from pair order (0, d/2, 1, d/2 + 1, ...) back to halves order; `[rows, ...]`."""
    pairs = rows.reshape(num_heads, rows.shape[0] // num_heads // 2, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape).contiguous()


class _Metadata:
    """Metadata of one architecture; remembers what was read, so that the rest can be refused."""

    def __init__(self, values: Mapping[str, Any], architecture: str) -> None:
        self._values = {
            key.removeprefix(f"{architecture}."): value
            for key, value in values.items()
            if key.startswith(f"{architecture}.")
        }
        self._taken: set[str] = set()

    def take(self, key: str, default: Any = None) -> Any:
        self._taken.add(key)
        return self._values.get(key, default)

    def whole(self, key: str, default: int | None = None) -> int:
        """A whole number above zero. Raises `CheckpointError` for anything else."""
        value = self.take(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise CheckpointError(f"GGUF metadata {key} is {value!r}: a whole number above zero is needed")
        return value

    def number(self, key: str, default: float) -> float:
        value = self.take(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise CheckpointError(f"GGUF metadata {key} is {value!r}: a number is needed")
        return float(value)

    def finish(self) -> None:
        for key in sorted(self._values.keys() - self._taken):
            raise UnsupportedModel(f"GGUF metadata {key} is {self._values[key]!r}: not understood")


def make_config(file: GgufFile, architecture: str, rope_divisors: Tensor | None) -> dict[str, Any]:
    """GGUF metadata -> Hugging Face config dict. Raises `UnsupportedModel` for keys that are not understood."""
    metadata = _Metadata(file.metadata, architecture)
    num_heads = metadata.whole("attention.head_count")
    hidden_size = metadata.whole("embedding_length")
    head_dim = metadata.whole("attention.key_length", hidden_size // num_heads)
    if metadata.take("attention.value_length", head_dim) != head_dim:
        raise UnsupportedModel("GGUF metadata attention.value_length: values must be as wide as keys")
    if metadata.take("rope.dimension_count", head_dim) != head_dim:
        raise UnsupportedModel("GGUF metadata rope.dimension_count: this family rotates whole heads")
    metadata.take("vocab_size")
    name, model_type = _ARCHITECTURES[architecture]
    config = {
        "architectures": [name],
        "model_type": model_type,
        "vocab_size": file.shape("token_embd.weight")[0],
        "hidden_size": hidden_size,
        "intermediate_size": metadata.whole("feed_forward_length"),
        "num_hidden_layers": metadata.whole("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": metadata.whole("attention.head_count_kv", num_heads),
        "head_dim": head_dim,
        "max_position_embeddings": metadata.whole("context_length"),
        "rms_norm_eps": _short_decimal(metadata.number("attention.layer_norm_rms_epsilon", 1e-5)),
        "tie_word_embeddings": "output.weight" not in file.names(),
    }
    _check_sizes(file, config)
    experts = _expert_fields(file, metadata, architecture)
    config |= _token_ids(file.metadata)
    config |= _gemma_fields(metadata, config) if architecture == "gemma3" else _window_fields(metadata, architecture)
    config |= experts
    if config["model_type"] == "llama":
        config["attention_bias"] = "blk.0.attn_q.bias" in file.names()
        config["mlp_bias"] = "blk.0.ffn_gate.bias" in file.names()
    config |= _rope_fields(metadata, architecture, rope_divisors)
    metadata.finish()
    return config


def _check_sizes(file: GgufFile, config: Mapping[str, Any]) -> None:
    """Refuse sizes that the tensors belie, before anything is built in them."""
    layers = {name.split(".")[1] for name in file.names() if name.startswith("blk.")}
    if len(layers) != config["num_hidden_layers"]:
        raise CheckpointError(
            f"{file.source}: metadata block_count is {config['num_hidden_layers']}, there are {len(layers)} blocks"
        )
    query_rows = config["num_attention_heads"] * config["head_dim"]
    meant = {
        "token_embd.weight": (config["vocab_size"], config["hidden_size"]),
        "blk.0.attn_q.weight": (query_rows, config["hidden_size"]),
    }
    for name, shape in meant.items():
        if file.shape(name) != shape:
            raise CheckpointError(f"{file.source}: tensor {name} is {file.shape(name)}, the metadata means {shape}")


def _token_ids(values: Mapping[str, Any]) -> dict[str, int]:
    keys = {"bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id", "pad_token_id": "padding_token_id"}
    stored = {name: values.get(f"tokenizer.ggml.{key}") for name, key in keys.items()}
    return {name: int(value) for name, value in stored.items() if value is not None}


def _gemma_fields(metadata: _Metadata, config: dict[str, Any]) -> dict[str, Any]:
    """Only the 27B (62 layers) scales queries by hidden / heads instead of the head size; GGUF does not say so."""
    is_27b = config["num_hidden_layers"] == 62
    scalar = config["hidden_size"] // config["num_attention_heads"] if is_27b else config["head_dim"]
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": scalar,
        "sliding_window": metadata.take("attention.sliding_window"),
        "_sliding_window_pattern": metadata.take("attention.sliding_window_pattern", 6),
        "final_logit_softcapping": metadata.take("final_logit_softcapping"),
        "attn_logit_softcapping": metadata.take("attn_logit_softcapping"),
        "rope_local_base_freq": metadata.number("rope.freq_base_swa", 10_000.0),
    }


def _expert_fields(file: GgufFile, metadata: _Metadata, architecture: str) -> dict[str, Any]:
    """Experts in a llama-architecture file are Mixtral's. llama.cpp makes the weights of the chosen experts sum to 1
    for both families, whatever `norm_topk_prob` was, and has experts in every layer."""
    num_experts = metadata.take("expert_count", 0)
    if num_experts and num_experts != next(iter(file.shape("blk.0.ffn_gate_exps.weight"))):
        raise CheckpointError(f"{file.source}: metadata expert_count is {num_experts}, the stacks hold others")
    per_token = metadata.take("expert_used_count", 0)
    size = metadata.take("expert_feed_forward_length")
    neutral = {
        "expert_weights_norm": True,
        "expert_weights_scale": 1.0,
        "expert_gating_func": 1,
        "expert_shared_count": 0,
    }
    for key, value in neutral.items():
        if metadata.take(key, value) != value:
            raise UnsupportedModel(f"GGUF metadata {key}: only {value!r} is understood")
    if not num_experts:
        return {}
    fields = {"num_local_experts": num_experts, "num_experts_per_tok": per_token}
    if architecture == "llama":
        return {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", **fields}
    if architecture == "qwen3moe":
        return {**fields, "moe_intermediate_size": size, "norm_topk_prob": True}
    raise UnsupportedModel(f"GGUF metadata expert_count is {num_experts}: not understood for {architecture}")


def _window_fields(metadata: _Metadata, architecture: str) -> dict[str, Any]:
    """A window in a llama-architecture file is Mistral's."""
    fields: dict[str, Any] = {"hidden_act": "silu"}
    window = metadata.take("attention.sliding_window")
    if not window:
        return fields
    if architecture != "llama":
        raise UnsupportedModel(f"GGUF metadata attention.sliding_window is {window}: not understood for {architecture}")
    return fields | {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": window}


def _rope_fields(metadata: _Metadata, architecture: str, divisors: Tensor | None) -> dict[str, Any]:
    theta = metadata.number("rope.freq_base", 1e6 if architecture == "gemma3" else 10_000.0)
    kind = metadata.take("rope.scaling.type", "none")
    keys = {
        "factor": "rope.scaling.factor",
        "original_max_position_embeddings": "rope.scaling.original_context_length",
        "attention_factor": "rope.scaling.attn_factor",
        "beta_fast": "rope.scaling.yarn_beta_fast",
        "beta_slow": "rope.scaling.yarn_beta_slow",
    }
    metadata.take("rope.scaling.finetuned")  # says how the weights were trained
    given = {name: metadata.take(key) for name, key in keys.items()}
    given = {name: value for name, value in given.items() if value is not None}
    if divisors is not None:
        if kind not in ("none", "llama3"):
            raise UnsupportedModel(f"GGUF metadata rope.scaling.type is {kind!r} beside {_ROPE_DIVISORS}")
        return {"rope_theta": theta, "rope_scaling": _llama3_scaling(divisors, theta)}
    if kind == "none":
        return {"rope_theta": theta}
    if kind == "linear" and given.keys() == {"original_max_position_embeddings", "factor"}:
        given.pop("original_max_position_embeddings")  # stated by some exporters, without effect here
    return {"rope_theta": theta, "rope_scaling": {"rope_type": kind, **given}}


def _llama3_scaling(divisors: Tensor, theta: float) -> dict[str, Any]:
    """The divisors are those of Llama 3.1 and later (low 1, high 4, 8192 positions), or they are refused."""
    factor = float(divisors.max())
    exponents = torch.arange(len(divisors), dtype=torch.float64) / len(divisors)
    turns = 8192 / (2 * math.pi * theta**exponents)
    keep = ((turns - 1.0) / 3.0).clamp(0.0, 1.0)
    expected = 1.0 / ((1 - keep) / factor + keep)
    if not torch.allclose(divisors.double(), expected, rtol=1e-3):
        raise UnsupportedModel(f"tensor {_ROPE_DIVISORS}: these divisors are not Llama 3.1's, and no others are known")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


def _short_decimal(value: float) -> float:
    """A float32 written as the decimal it was meant to be: 9.999999747e-06 -> 1e-05."""
    return float(f"{value:.6g}")
