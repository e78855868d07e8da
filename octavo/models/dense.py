"""What the decoder families read alike: sizes, head layout, activation, rotations, windows."""

from __future__ import annotations

from typing import Any

from octavo.models.config import ConfigReader
from octavo.models.rope import read_rope
from octavo.models.spec import LayerSpec, RopeSpec
from octavo.ops.base import Activation

_ACTIVATIONS = {
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "gelu_new": Activation.GELU_TANH,
}


def read_sizes(
    reader: ConfigReader, default_head_dim: int | None = None, default_norm_eps: float = 1e-6
) -> dict[str, Any]:
    """The fields of `ModelSpec` that every family states in the same words. An absent head_dim is
    `default_head_dim`, or hidden_size / num_attention_heads."""
    hidden_size = reader.whole("hidden_size")
    num_heads = reader.whole("num_attention_heads")
    num_kv_heads = reader.whole("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        reader.refuse("num_key_value_heads", f"it must divide num_attention_heads ({num_heads})")
    if reader.take("head_dim", default_head_dim) is None and hidden_size % num_heads:
        reader.refuse("hidden_size", f"without head_dim it must be a multiple of num_attention_heads ({num_heads})")
    head_dim = reader.whole("head_dim", default_head_dim or max(1, hidden_size // num_heads))
    if head_dim % 2:
        reader.refuse("head_dim", "rotary positions need an even head size")
    return {
        "vocab_size": reader.whole("vocab_size"),
        "hidden_size": hidden_size,
        "intermediate_size": reader.whole("intermediate_size"),
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": reader.whole("max_position_embeddings"),
        "norm_eps": reader.number("rms_norm_eps", default_norm_eps),
        "attention_scale": head_dim**-0.5,
    }


def read_activation(reader: ConfigReader, name: str = "hidden_act", default: str = "silu") -> Activation:
    value = reader.take(name, default)
    if value not in _ACTIVATIONS:
        reader.refuse(name, f"known activations are {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[value]


def read_rotation(reader: ConfigReader, sizes: dict[str, Any], default_theta: float = 10_000.0) -> RopeSpec:
    return read_rope(reader, sizes["head_dim"], sizes["max_position_embeddings"], default_theta)


def read_layer_types(reader: ConfigReader, num_layers: int, default: list[str]) -> list[str]:
    """`layer_types` entry by entry, or `default`."""
    layer_types = reader.take("layer_types", default)
    if len(layer_types) != num_layers:
        reader.refuse("layer_types", f"it needs one entry for each of the {num_layers} layers")
    if not set(layer_types) <= {"full_attention", "sliding_attention"}:
        reader.refuse("layer_types", "only full_attention and sliding_attention are understood")
    return layer_types


def read_optional_windows(reader: ConfigReader, num_layers: int) -> list[int | None]:
    """Qwen's windows: off unless `use_sliding_window`, then from `max_window_layers` up, or as `layer_types` says."""
    window = reader.whole("sliding_window") if reader.take("sliding_window") is not None else None
    if not reader.flag("use_sliding_window"):
        window = None
    first = reader.take("max_window_layers", 28)
    default = ["sliding_attention" if window and index >= first else "full_attention" for index in range(num_layers)]
    layer_types = read_layer_types(reader, num_layers, default)
    if window is None and "sliding_attention" in layer_types:
        reader.refuse("layer_types", "it asks for sliding layers but sliding_window is off")
    return [window if kind == "sliding_attention" else None for kind in layer_types]


def uniform_layers(num_layers: int, rope: RopeSpec, window: int | None = None) -> tuple[LayerSpec, ...]:
    return (LayerSpec(window=window, rope=rope),) * num_layers
