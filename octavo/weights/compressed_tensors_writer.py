"""Writes a quantized model as a Hugging Face directory in compressed-tensors' format.

Linear modules are pack-quantized. An 8-bit embedding is int-quantized, because that keeps a parameter called
`weight`: transformers looks for one in every embedding, and ties `lm_head.weight` to nothing else. For a tied model
the file holds the int8 codes once, `lm_head` is named beside the embedding as a target, and the embedding's scales (2
bytes a row) are stored a second time as `lm_head.weight_scale`: transformers 5.24 decompresses the two modules one by
one, and with `lm_head` ignored it would multiply by bare codes (tests/weights/test_transformers_loads.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from octavo.core.errors import InvalidField
from octavo.numerics.packed_tensor import PackedTensor
from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.numerics.scheme import IntegerScheme
from octavo.weights.atomic_directory import atomic_directory
from octavo.weights.checkpoint import CONFIG_NAME
from octavo.weights.compressed_tensors_config import (
    HEAD_MODULE,
    LAYOUT_VERSION,
    METHOD,
    MIXED_PRECISION,
    Layout,
    ModuleClass,
    module_class,
)
from octavo.weights.compressed_tensors_layout import SCALE, ZERO_POINT, encode_module
from octavo.weights.model_directory import (
    PRODUCER,
    WrittenCheckpoint,
    check_extra_names,
    check_finite,
    check_target,
    is_tied,
    write_companions,
    write_json,
)
from octavo.weights.shard_writer import DEFAULT_SHARD_BYTES, ShardWriter

if TYPE_CHECKING:
    from octavo.text.tokenizer import Tokenizer

#: What the module names of experts have in common, and the target that means them.
EXPERTS = ".experts."
EXPERTS_PATTERN = r"re:.*\.experts\..*"


@dataclass(slots=True)
class _Contents:
    """What has been put into the files so far."""

    tied: bool
    formats: dict[str, tuple[IntegerScheme, Layout]] = field(default_factory=dict)
    dense_matrices: list[str] = field(default_factory=list)
    tensor_bytes: dict[str, int] = field(default_factory=dict)
    num_weights: int = 0


def write_compressed_tensors(
    directory: Path,
    tensors: Mapping[str, Tensor | QuantizedTensor],
    config: Mapping[str, Any],
    tokenizer: Tokenizer | None = None,
    extra_files: Mapping[str, bytes] | None = None,
    *,
    overwrite: bool = False,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
) -> WrittenCheckpoint:
    """Write `directory` whole or not at all; equal arguments give equal bytes.

    `tensors` maps Hugging Face names to dense tensors (written in their dtype) or packed ones (under
    `<module>.weight`); each value is asked for once, so the mapping may load lazily. A tied model has no
    `lm_head.weight`. `extra_files` (generation_config.json, the source's tokenizer files, ...) win over what
    `tokenizer` saves. An existing Octavo checkpoint is replaced; another non-empty directory only with `overwrite`.
    Raises `InvalidField` for arguments that contradict each other, `CheckpointError` for NaN or infinity.
    """
    directory = Path(directory)
    extra_files = dict(extra_files or {})
    check_target(directory, overwrite)
    check_extra_names(extra_files)
    contents = _Contents(tied=is_tied(tensors, config))
    with atomic_directory(directory) as partial:
        shards = ShardWriter(partial, shard_bytes)
        for name in sorted(tensors):
            shards.add(_stored_parts(name, tensors[name], contents))
        if not contents.formats:
            raise InvalidField("tensors", sorted(tensors)[:3], "at least one must be a PackedTensor")
        total_bytes = shards.finish()
        quantization, notes = _quantization_config(contents)
        written = {**config, "tie_word_embeddings": contents.tied, "quantization_config": quantization}
        write_json(partial / CONFIG_NAME, written)
        write_companions(partial, config, tokenizer, extra_files)
    return WrittenCheckpoint(directory, contents.tensor_bytes, total_bytes, contents.num_weights, notes)


def _stored_parts(name: str, value: Tensor | QuantizedTensor, contents: _Contents) -> dict[str, Tensor]:
    if isinstance(value, PackedTensor):
        module, _, last = name.rpartition(".")
        if last != "weight" or not module:
            raise InvalidField("tensors", name, "a packed tensor must be called <module>.weight")
        layout = _layout(module, value.scheme)
        contents.formats[module] = (value.scheme, layout)
        parts = {f"{module}.{part}": tensor for part, tensor in encode_module(value, layout).items()}
        if contents.tied and layout is Layout.INT_QUANTIZED:
            copied = [part for part in (SCALE, ZERO_POINT) if f"{module}.{part}" in parts]
            parts |= {f"{HEAD_MODULE}.{part}": parts[f"{module}.{part}"].clone() for part in copied}
    elif isinstance(value, QuantizedTensor):
        raise InvalidField("tensors", name, f"{value.scheme} is not written yet")
    else:
        parts = {name: value.contiguous()}
        if value.ndim == 2 and name.endswith(".weight"):
            contents.dense_matrices.append(name.removesuffix(".weight"))
    check_finite(parts)
    contents.tensor_bytes[name] = sum(tensor.nbytes for tensor in parts.values())
    contents.num_weights += torch.Size(value.shape).numel()
    return parts


def _layout(module: str, scheme: IntegerScheme) -> Layout:
    is_embedding = module_class(module) is ModuleClass.EMBEDDING
    return Layout.INT_QUANTIZED if is_embedding and scheme.bits == 8 else Layout.PACK_QUANTIZED


def _quantization_config(contents: _Contents) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The section, and notes. Embedding groups come first: a target that another group's class also matches is
    looked up in the file's order by compressed-tensors."""
    by_class: dict[ModuleClass, list[str]] = {kind: [] for kind in (ModuleClass.EMBEDDING, ModuleClass.LINEAR)}
    for module in contents.formats:
        by_class[module_class(module)].append(module)
    notes: list[str] = []
    groups: list[dict[str, Any]] = []
    head_targeted = HEAD_MODULE in contents.formats
    for kind, modules in by_class.items():
        for targets, scheme, layout in _targets(kind, modules, contents):
            if kind is ModuleClass.EMBEDDING and layout is Layout.PACK_QUANTIZED:
                notes.append(f"transformers 5.24 loads a quantized embedding of 8 bits only, not of {scheme.bits}")
            elif kind is ModuleClass.EMBEDDING and contents.tied:
                targets.append(HEAD_MODULE)
                head_targeted = True
            groups.append(_group(targets, scheme, layout))
    ignore = [module for module in contents.dense_matrices if by_class[module_class(module)]]
    if not head_targeted and HEAD_MODULE not in ignore and by_class[ModuleClass.LINEAR]:
        ignore.append(HEAD_MODULE)
    formats = {group["format"] for group in groups}
    packed_schemes = [scheme for scheme, layout in contents.formats.values() if layout is Layout.PACK_QUANTIZED]
    if not all(scheme.symmetric for scheme in packed_schemes):
        notes.append(
            "transformers with compressed-tensors 0.20 does not load packed zero points; symmetric schemes load"
        )
    if any(scheme.bits == 3 for scheme, _ in contents.formats.values()):
        notes.append("3-bit codes are packed densely: compressed-tensors reads them since 0.15, not before")
    section = {
        "quant_method": METHOD,
        "format": formats.pop() if len(formats) == 1 else MIXED_PRECISION,
        "quantization_status": "compressed",
        "config_groups": {f"group_{number}": group for number, group in enumerate(groups)},
        "ignore": ignore,
        "global_compression_ratio": None,
        "kv_cache_scheme": None,
        "version": LAYOUT_VERSION,
        "producer": PRODUCER,
    }
    return section, tuple(notes)


def _targets(
    kind: ModuleClass, modules: list[str], contents: _Contents
) -> list[tuple[list[str], IntegerScheme, Layout]]:
    """The commonest scheme of a class is the class's (the form every engine reads), others go by module name.

    Experts that all have the class's scheme are also targeted by a pattern: transformers 5.24 stacks them, and takes
    their scheme from the group that has such a pattern, or else from the first group, which is the embedding's.
    """
    counts = Counter(contents.formats[module] for module in modules).most_common()
    expert_formats = {contents.formats[module] for module in modules if EXPERTS in module}
    groups = []
    for rank, (module_format, _) in enumerate(counts):
        targets = [module for module in modules if contents.formats[module] == module_format]
        if rank == 0:
            targets = [kind.value, *([EXPERTS_PATTERN] if expert_formats == {module_format} else [])]
        groups.append((targets, *module_format))
    return groups


def _group(targets: list[str], scheme: IntegerScheme, layout: Layout) -> dict[str, Any]:
    weights = {
        "num_bits": scheme.bits,
        "type": "int",
        "symmetric": scheme.symmetric,
        "strategy": "channel" if scheme.group_size is None else "group",
        "group_size": scheme.group_size,
        "dynamic": False,
    }
    return {
        "targets": targets,
        "weights": weights,
        "input_activations": None,
        "output_activations": None,
        "format": layout.value,
    }
