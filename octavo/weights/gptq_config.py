"""GPTQ's `quantization_config` (or quantize_config.json): bits, groups and their exceptions module by module.

What changes the meaning of the stored numbers is understood or refused; what only tells how a checkpoint was made
is passed over; a key that is neither becomes a note.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.core.errors import CheckpointError
from octavo.numerics.scheme import BITS
from octavo.weights.checkpoint import CONFIG_NAME
from octavo.weights.gptq_layout import GptqArgs, GptqVersion
from octavo.weights.safetensors_directory import read_json

METHOD = "gptq"
QUANTIZE_CONFIG_NAME = "quantize_config.json"
_MEANING = ("bits", "group_size", "sym", "desc_act", "checkpoint_format", "format", "pack_dtype")
_UNDERSTOOD = {*_MEANING, "dynamic", "lm_head", "meta", "quant_method", "method", "is_marlin_format"}
#: How the checkpoint was made, or how some engine is to run it.
_HISTORY = {
    "damp_percent", "damp_auto_increment", "static_groups", "true_sequential", "model_name_or_path", "mse", "provider",
    "model_file_base_name", "dataset", "tokenizer", "batch_size", "backend", "max_input_length", "use_exllama",
    "exllama_config", "disable_exllama", "use_cuda_fp16", "model_seqlen", "block_name_to_quantize", "quantizer",
    "module_name_preceding_first_block", "cache_block_outputs", "modules_in_block_to_quantize", "pad_token_id",
    "parallel_packing", "act_group_aware", "hyb_act", "v2", "v2_alpha", "gptaq", "gptaq_alpha", "foem", "failsafe",
    "offload_to_disk", "offload_to_disk_path", "compute_device_filter", "auto_forward_data_parallelism", "device",
    "gc_mode", "wait_for_submodule_finalizers", "vram_strategy", "dense_vram_strategy", "moe_vram_strategy",
    "dense_vram_strategy_devices", "moe_vram_strategy_devices", "pack_impl", "fallback", "moe", "autoround_version",
    "iters", "nsamples", "seqlen", "low_gpu_mem_usage", "enable_quanted_input", "lr", "minmax_lr", "scale_dtype",
}  # fmt: skip
#: These change what a module computes.
_FOREIGN = ("adapter", "rotation", "preprocessors", "lora")


@dataclass(frozen=True, slots=True)
class GptqConfig:
    """`overrides`: pattern -> arguments, None where the pattern says that modules are dense; the first match wins.
    `act_order`: groups may be out of order. `borrowed`: see `decode_gptq`."""

    args: GptqArgs
    version: GptqVersion
    overrides: tuple[tuple[re.Pattern[str], GptqArgs | None], ...] = ()
    act_order: bool = False
    borrowed: bool = False
    notes: tuple[str, ...] = ()

    def args_of(self, module: str) -> GptqArgs | None:
        """None: the config says that this module is dense."""
        for pattern, args in self.overrides:
            if pattern.match(module):
                return args
        return self.args


def read_gptq_section(source: Path) -> tuple[dict[str, Any], str]:
    """The section and where it stands. Raises `CheckpointError` where two files contradict each other."""
    section = read_json(source / CONFIG_NAME).get("quantization_config")
    where = f"{source / CONFIG_NAME}: quantization_config"
    other_file = source / QUANTIZE_CONFIG_NAME
    if not other_file.is_file():
        return section or {}, where
    other = read_json(other_file)
    if section is None:
        return other, str(other_file)
    for key in _MEANING:
        if key in section and key in other and section[key] != other[key]:
            raise CheckpointError(f"{where}.{key} is {section[key]!r}, but {other_file} says {other[key]!r}")
    return {**other, **section}, where


def parse_gptq_config(section: Mapping[str, Any], where: str) -> GptqConfig:
    """Raises `CheckpointError` that begins with `where` and names the key that is not understood."""
    for key in _FOREIGN:
        _require(not section.get(key), where, key, section.get(key), "what it adds to a layer is not read")
    _require(section.get("pack_dtype", "int32") == "int32", where, "pack_dtype", section.get("pack_dtype"), "not int32")
    _require(not section.get("is_marlin_format"), where, "is_marlin_format", True, "Marlin's order is not read")
    args = _args(section, where)
    overrides = tuple(_overrides(section.get("dynamic") or {}, args, f"{where}.dynamic"))
    quantizers = (section.get("meta") or {}).get("quantizer") or []
    quantizers = [quantizers] if isinstance(quantizers, str) else quantizers
    unknown = sorted(set(section) - _UNDERSTOOD - _HISTORY - set(_FOREIGN))
    notes = [f"quantization_config.{key} is not known to Octavo and was passed over" for key in unknown]
    return GptqConfig(
        args,
        _version(section, where),
        overrides,
        act_order=bool(section.get("desc_act", False)),
        borrowed=any(str(name).startswith("gptqmodel") for name in quantizers),
        notes=tuple(notes),
    )


def _version(section: Mapping[str, Any], where: str) -> GptqVersion:
    key = "checkpoint_format" if "checkpoint_format" in section else "format"
    label = section.get(key) or GptqVersion.V1.value
    known = [version.value for version in GptqVersion]
    _require(label in known, where, key, label, f"{' and '.join(known)} are read")
    return GptqVersion(label)


def _args(section: Mapping[str, Any], where: str) -> GptqArgs:
    bits, group_size = section.get("bits"), section.get("group_size", -1)
    _require(bits in BITS, where, "bits", bits, f"these are read: {', '.join(map(str, BITS))}")
    valid = isinstance(group_size, int) and (group_size == -1 or group_size > 0)
    _require(valid, where, "group_size", group_size, "a number of inputs, or -1 for all of them")
    assert isinstance(bits, int)
    return GptqArgs(bits, group_size, bool(section.get("sym", True)))


def _overrides(dynamic: Mapping[str, Any], args: GptqArgs, where: str) -> list[tuple[re.Pattern[str], GptqArgs | None]]:
    """`-:pattern` keeps modules dense; `+:pattern` or `pattern` changes arguments."""
    overrides: list[tuple[re.Pattern[str], GptqArgs | None]] = []
    for key, fields in dynamic.items():
        try:
            pattern = re.compile(re.sub(r"^[+-]:", "", key))
        except re.error as error:
            raise CheckpointError(f"{where}: {key!r} is not a valid pattern: {error}") from error
        if key.startswith("-:"):
            overrides.append((pattern, None))
            continue
        _require(isinstance(fields, dict), where, key, fields, "must be a set of fields")
        for name in fields:
            _require(name in _UNDERSTOOD | _HISTORY, f"{where}[{key!r}]", name, fields[name], "not understood")
        merged = _args({"bits": args.bits, "group_size": args.group_size, "sym": args.symmetric, **fields}, where)
        overrides.append((pattern, merged))
    return overrides


def make_gptq_config(
    modules: Mapping[str, GptqArgs], dense: list[str], version: GptqVersion, quantizer: str
) -> dict[str, Any]:
    """The section for these packed `modules`, and `dense` linears beside them. The commonest arguments are the
    section's own, others and dense linears go into `dynamic`."""
    counts: dict[GptqArgs, int] = {}
    for args in modules.values():
        counts[args] = counts.get(args, 0) + 1
    default = max(counts, key=lambda args: counts[args])
    dynamic: dict[str, dict[str, Any]] = {f"-:{_exactly(module)}": {} for module in dense}
    for module, args in modules.items():
        if args != default:
            dynamic[f"+:{_exactly(module)}"] = _fields(args)
    return {
        "quant_method": METHOD,
        "checkpoint_format": version.value,
        "format": version.value,
        **_fields(default),
        "desc_act": False,
        "static_groups": False,
        "true_sequential": True,
        "damp_percent": 0.01,
        "lm_head": "lm_head" in modules,
        "pack_dtype": "int32",
        "dynamic": dynamic or None,
        "meta": {"quantizer": [quantizer]},
    }


def _fields(args: GptqArgs) -> dict[str, Any]:
    return {"bits": args.bits, "group_size": args.group_size, "sym": args.symmetric}


def _exactly(module: str) -> str:
    return f"^{re.escape(module)}$"


def _require(condition: bool, where: str, key: str, value: Any, expected: str) -> None:
    if not condition:
        raise CheckpointError(f"{where}.{key}: got {value!r}; {expected}")
