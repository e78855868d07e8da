"""The formats a model can be written in, and what each can hold: for `octavo export` and for a pre-flight."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from octavo.core.errors import InvalidField
from octavo.numerics.float_scheme import FloatFormat, FloatScheme
from octavo.numerics.scheme import LinearScheme
from octavo.weights.awq_writer import awq_refusal, write_awq
from octavo.weights.bitnet_writer import bitnet_refusal, write_bitnet
from octavo.weights.compressed_tensors_writer import write_compressed_tensors
from octavo.weights.fp8_writer import fp8_refusal, write_fp8
from octavo.weights.gptq_writer import gptq_refusal, write_gptq
from octavo.weights.model_directory import WrittenCheckpoint

#: Module name, scheme and shape -> why the format cannot hold it, or None.
Refusal = Callable[[str, LinearScheme, tuple[int, int]], str | None]


def compressed_tensors_refusal(module: str, linear: LinearScheme, shape: tuple[int, int]) -> str | None:
    scheme = linear.weights
    if isinstance(scheme, FloatScheme) and scheme.format is FloatFormat.E5M2:
        return "it is FP8 E5M2, which compressed-tensors cannot declare"
    return None


def no_refusal(module: str, linear: LinearScheme, shape: tuple[int, int]) -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class Format:
    """`write(directory, model, overwrite=...)` None: what is written needs more than a `StoredModel` (a dtype, a
    model's spec). `holds_kv_scales`, `holds_inputs`: whether the format has a place for them."""

    name: str
    holds: str
    refusal: Refusal
    write: Callable[..., WrittenCheckpoint] | None
    holds_kv_scales: bool = False
    holds_inputs: bool = False


FORMATS = {
    each.name: each
    for each in (
        Format(
            "compressed-tensors",
            "every scheme but FP8 E5M2, input quantizers, KV scales",
            compressed_tensors_refusal,
            write_compressed_tensors,
            holds_kv_scales=True,
            holds_inputs=True,
        ),
        Format("gptq", "integer weights of linears, 2, 3, 4, 8 bits", gptq_refusal, write_gptq),
        Format("awq", "integer weights of linears, 4 bits, one group size", awq_refusal, write_awq),
        Format("bitnet", "ternary linears with int8 inputs", bitnet_refusal, write_bitnet, holds_inputs=True),
        Format(
            "fp8",
            "FP8 E4M3 linears by block or by matrix (transformers' fine-grained FP8)",
            fp8_refusal,
            write_fp8,
            holds_inputs=True,
        ),
        Format("gguf", "what a ggml type holds exactly; any type with --type", no_refusal, None),
        Format("hf", "dense float32, bfloat16 or float16", no_refusal, None),
    )
}


def find_format(name: str) -> Format:
    """Raises `InvalidField` for a name that is none."""
    if name not in FORMATS:
        raise InvalidField("format", name, f"formats are {', '.join(FORMATS)}")
    return FORMATS[name]


def refusals(
    format_name: str, schemes: Mapping[str, LinearScheme], shapes: Mapping[str, tuple[int, int]]
) -> dict[str, str]:
    """Module -> why the format cannot hold it, from schemes and shapes `[outputs, inputs]` alone; empty: it can hold
    them all (what numbers tell, such as scales that are no float16 numbers, shows when they are written)."""
    refusal = find_format(format_name).refusal
    found = {module: refusal(module, linear, shapes[module]) for module, linear in schemes.items()}
    return {module: reason for module, reason in found.items() if reason is not None}
