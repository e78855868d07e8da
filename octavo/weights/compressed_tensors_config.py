"""compressed-tensors' `quantization_config`: which module has which scheme in which layout.

Every key is understood or refused: a key that is passed over could change what the stored numbers mean.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from octavo.core.errors import CheckpointError, InvalidField
from octavo.numerics.scheme import IntegerScheme

METHOD = "compressed-tensors"
#: Release of the compressed-tensors package whose layout is written and read (3 bits: dense across words).
LAYOUT_VERSION = "0.20.1"
MIXED_PRECISION = "mixed-precision"
#: Hugging Face's module name of the output head; it has no tensor of its own when tied to the embedding.
HEAD_MODULE = "lm_head"


class Layout(StrEnum):
    """How a module's codes are stored."""

    PACK_QUANTIZED = "pack-quantized"
    INT_QUANTIZED = "int-quantized"


class ModuleClass(StrEnum):
    """torch class names that targets may use."""

    LINEAR = "Linear"
    EMBEDDING = "Embedding"


@dataclass(frozen=True, slots=True)
class ModuleFormat:
    """What a module's stored tensors mean. `per_tensor`: one scale for the whole matrix."""

    scheme: IntegerScheme
    layout: Layout
    per_tensor: bool = False


@dataclass(frozen=True, slots=True)
class QuantizationConfig:
    """`formats` maps a target (module name, `re:` pattern or class) to its format, in the file's order."""

    formats: dict[str, ModuleFormat]
    ignore: tuple[str, ...]

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
    for key in ("kv_cache_scheme", "transform_config", "moe_sparsity_config"):
        _require(not section.get(key), where, key, section.get(key), "only null is read")
    sparsity = section.get("sparsity_config")
    _require(
        not sparsity or sparsity.get("format") == "dense", where, "sparsity_config", sparsity, "only dense is read"
    )
    status = section.get("quantization_status")
    _require(status == "compressed", where, "quantization_status", status, "only 'compressed' is read")
    groups = section.get("config_groups")
    _require(isinstance(groups, dict) and bool(groups), where, "config_groups", groups, "must be groups of modules")
    formats: dict[str, ModuleFormat] = {}
    for name, group in (groups or {}).items():
        place = f"{where}.config_groups.{name}"
        _require(isinstance(group, dict), where, f"config_groups.{name}", group, "presets by name are not read")
        module_format = _parse_group(group, section.get("format"), place)
        for target in group.get("targets") or []:
            formats.setdefault(target, module_format)
    return QuantizationConfig(formats, tuple(section.get("ignore") or ()))


def _parse_group(group: Mapping[str, Any], whole_format: Any, where: str) -> ModuleFormat:
    known = {"targets", "weights", "input_activations", "output_activations", "format"}
    _refuse_unknown(group, known, where)
    for key in ("input_activations", "output_activations"):
        _require(group.get(key) is None, where, key, group.get(key), "quantized activations are not read")
    name = group.get("format") or whole_format
    layouts = {"pack-quantized": Layout.PACK_QUANTIZED, "int-quantized": Layout.INT_QUANTIZED}
    layouts["naive-quantized"] = Layout.INT_QUANTIZED
    _require(name in layouts, where, "format", name, f"these are read: {', '.join(layouts)}")
    weights = group.get("weights")
    _require(isinstance(weights, dict), where, "weights", weights, "must describe the weights")
    return _parse_weights(weights or {}, layouts[name], f"{where}.weights")


def _parse_weights(args: Mapping[str, Any], layout: Layout, where: str) -> ModuleFormat:
    harmless = {"observer", "observer_kwargs", "scale_dtype", "zp_dtype"}
    known = {"num_bits", "type", "symmetric", "strategy", "group_size", "block_structure", "dynamic", "actorder"}
    _refuse_unknown(args, known | harmless, where)
    kind = args.get("type", "int")
    _require(kind == "int", where, "type", kind, "only 'int' is read")
    _require(args.get("block_structure") is None, where, "block_structure", args.get("block_structure"), "not read")
    _require(args.get("dynamic", False) is False, where, "dynamic", args.get("dynamic"), "weights must be static")
    order = args.get("actorder")
    _require(order in (None, False, "weight", "static"), where, "actorder", order, "an order with g_idx is not read")
    strategy, group_size = args.get("strategy"), args.get("group_size") or 0
    if strategy is None:
        strategy = "group" if group_size > 0 else "channel"
    _require(strategy in ("group", "channel", "tensor"), where, "strategy", strategy, "group, channel, tensor are read")
    if strategy == "group":
        _require(group_size > 0, where, "group_size", group_size, "strategy group needs one")
    try:
        scheme = IntegerScheme(
            bits=args.get("num_bits", 8),
            group_size=group_size if strategy == "group" else None,
            symmetric=args.get("symmetric", True),
        )
    except InvalidField as error:
        raise CheckpointError(f"{where}: {error}") from error
    return ModuleFormat(scheme, layout, per_tensor=strategy == "tensor")


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


def _require(condition: bool, where: str, key: str, value: Any, expected: str) -> None:
    if not condition:
        raise CheckpointError(f"{where}.{key}: got {value!r}; {expected}")
