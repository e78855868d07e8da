"""compressed-tensors' `quantization_config`: which module has which scheme in which layout.

Every key is understood or refused: a key that is passed over could change what the stored numbers mean.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from octavo.core.errors import CheckpointError
from octavo.weights.compressed_tensors_args import (
    KvFormat,
    ModuleFormat,
    parse_inputs,
    parse_kv,
    parse_weights,
    require,
)

METHOD = "compressed-tensors"
#: Release of the compressed-tensors package whose layout is written and read (3 bits: dense across words).
LAYOUT_VERSION = "0.20.1"
MIXED_PRECISION = "mixed-precision"
#: Hugging Face's module name of the output head; it has no tensor of its own when tied to the embedding.
HEAD_MODULE = "lm_head"


class ModuleClass(StrEnum):
    """torch class names that targets may use."""

    LINEAR = "Linear"
    EMBEDDING = "Embedding"


@dataclass(frozen=True, slots=True)
class QuantizationConfig:
    """`formats` maps a target (module name, `re:` pattern or class) to its format, in the file's order. `kv`: how
    attention modules round what they cache, None: not."""

    formats: dict[str, ModuleFormat]
    ignore: tuple[str, ...]
    kv: KvFormat | None = None

    def format_of(self, module: str) -> ModuleFormat | None:
        """The most specific match wins: name, then pattern, then class. None: the module is dense."""
        if any(_matches(module, entry) for entry in self.ignore):
            return None
        ordered = sorted(self.formats, key=_generality)
        return next((self.formats[target] for target in ordered if _matches(module, target)), None)


def module_class(module: str) -> ModuleClass:
    """The torch class a module's name tells of; tensors themselves do not say."""
    last = module.rpartition(".")[2]
    is_embedding = "embed" in last or last in ("wte", "wpe")
    return ModuleClass.EMBEDDING if is_embedding else ModuleClass.LINEAR


def parse_quantization_config(section: Mapping[str, Any], where: str) -> QuantizationConfig:
    """Raises `CheckpointError` that begins with `where` and names the key that is not understood."""
    known = {"quant_method", "config_groups", "format", "ignore", "quantization_status", "version", "producer"}
    known |= {"global_compression_ratio", "kv_cache_scheme", "sparsity_config", "transform_config"}
    known |= {"moe_sparsity_config", "run_compressed", "dequantize", "use_optimized_inference"}
    _refuse_unknown(section, known, where)
    for key in ("transform_config", "moe_sparsity_config"):
        require(not section.get(key), where, key, section.get(key), "only null is read")
    sparsity = section.get("sparsity_config")
    require(not sparsity or sparsity.get("format") == "dense", where, "sparsity_config", sparsity, "only dense is read")
    status = section.get("quantization_status")
    # Before 2025 llm-compressor wrote "frozen" beside compressed FP8; dense weights are refused when they are read.
    require(status in ("compressed", "frozen"), where, "quantization_status", status, "'compressed' is read")
    groups = section.get("config_groups")
    require(isinstance(groups, dict) and bool(groups), where, "config_groups", groups, "must be groups of modules")
    formats: dict[str, ModuleFormat] = {}
    for name, group in (groups or {}).items():
        place = f"{where}.config_groups.{name}"
        require(isinstance(group, dict), where, f"config_groups.{name}", group, "presets by name are not read")
        module_format = _parse_group(group, section.get("format"), place)
        for target in group.get("targets") or []:
            formats.setdefault(target, module_format)
    kv = parse_kv(section.get("kv_cache_scheme"), f"{where}.kv_cache_scheme")
    return QuantizationConfig(formats, tuple(section.get("ignore") or ()), kv)


def _parse_group(group: Mapping[str, Any], whole_format: Any, where: str) -> ModuleFormat:
    known = {"targets", "weights", "input_activations", "output_activations", "format"}
    _refuse_unknown(group, known, where)
    outputs = group.get("output_activations")
    require(outputs is None, where, "output_activations", outputs, "rounded outputs are not read")
    weights = group.get("weights")
    require(isinstance(weights, dict), where, "weights", weights, "must describe the weights")
    module_format = parse_weights(weights or {}, group.get("format") or whole_format, f"{where}.weights")
    inputs = parse_inputs(group.get("input_activations"), f"{where}.input_activations")
    return replace(module_format, inputs=inputs)


def _matches(module: str, target: str) -> bool:
    if target.startswith("re:"):
        try:
            return re.match(target.removeprefix("re:"), module) is not None
        except re.error as error:
            raise CheckpointError(f"quantization_config: target {target!r} is not a valid pattern: {error}") from error
    return target in (module, module_class(module).value)


def _generality(target: str) -> tuple[int, str]:
    if target in list(ModuleClass):
        return 2, target
    return (1 if target.startswith("re:") else 0), target


def _refuse_unknown(section: Mapping[str, Any], known: set[str], where: str) -> None:
    for key in section:
        if key not in known:
            raise CheckpointError(f"{where}.{key}: got {section[key]!r}; this key is not understood")
