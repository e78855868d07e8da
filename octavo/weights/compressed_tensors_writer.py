"""Writes a quantized model as a Hugging Face directory in compressed-tensors' format.

Integer weights are pack-quantized, or int-quantized where inputs are rounded too (W8A8). FP8 weights are
float-quantized with rounded inputs and naive-quantized without, as the package itself decides; NVFP4, MXFP4 and MXFP8
have layouts of their own.

An 8-bit embedding is int-quantized, because that keeps a parameter called `weight`: transformers looks for one in every
embedding, and ties `lm_head.weight` to nothing else. For a tied model the file holds the int8 codes once, `lm_head` is
named beside the embedding as a target, and the embedding's scales (2 bytes a row) are stored a second time as
`lm_head.weight_scale`: transformers 5.24 decompresses the two modules one by one, and with `lm_head` ignored it would
multiply by bare codes (tests/weights/test_transformers_loads.py).
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from octavo.core.errors import InvalidField
from octavo.numerics.activations import ActivationScheme, InputQuantizer
from octavo.numerics.float_scheme import BLOCK, MXFP4, MXFP8, NVFP4, FloatScheme, Granularity, ScaleFormat
from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.numerics.scheme import IntegerScheme, Scheme
from octavo.weights.compressed_tensors_args import Layout, ModuleFormat, input_args, kv_args, weight_args
from octavo.weights.compressed_tensors_config import (
    HEAD_MODULE,
    LAYOUT_VERSION,
    METHOD,
    MIXED_PRECISION,
    ModuleClass,
    module_class,
)
from octavo.weights.compressed_tensors_float_layout import SCALE
from octavo.weights.compressed_tensors_kv import encode_kv, kv_format_of
from octavo.weights.compressed_tensors_layout import ZERO_POINT, encode_module
from octavo.weights.compressed_tensors_targets import split_fused_members, targets_by_format
from octavo.weights.model_directory import PRODUCER, WrittenCheckpoint, is_tied, write_model_directory
from octavo.weights.shard_writer import DEFAULT_SHARD_BYTES
from octavo.weights.stored_model import StoredModel

_FLOAT_LAYOUTS = {
    NVFP4: Layout.NVFP4_PACK_QUANTIZED, MXFP4: Layout.MXFP4_PACK_QUANTIZED, MXFP8: Layout.MXFP8_QUANTIZED,
}  # fmt: skip


def write_compressed_tensors(
    directory: Path,
    model: StoredModel,
    *,
    overwrite: bool = False,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
) -> WrittenCheckpoint:
    """Write `directory` whole or not at all; equal arguments give equal bytes.

    Dense tensors are written in their dtype. Raises `InvalidField` for what the format cannot hold and for arguments
    that contradict each other, `CheckpointError` for NaN or infinity.
    """
    encoder = _Encoder(model, is_tied(model.tensors, model.config))
    return write_model_directory(directory, model, encoder, overwrite=overwrite, shard_bytes=shard_bytes)


class _Encoder:
    """An `Encoder` of `model_directory`."""

    def __init__(self, model: StoredModel, tied: bool) -> None:
        self._inputs, self._kv_scales, self._tied = model.inputs, model.kv_scales, tied
        self._kv = kv_format_of(model.kv_scales.values())
        self._formats: dict[str, ModuleFormat] = {}
        self._dense: list[str] = []
        self._ragged: list[str] = []
        self._attentions_to_write = _attention_modules(model)

    def encode(self, name: str, tensor: Tensor | QuantizedTensor) -> dict[str, Tensor]:
        return self._encode_kv(name) | self._encode_matrix(name, tensor)

    def _encode_kv(self, name: str) -> dict[str, Tensor]:
        """An attention module's scales, beside the first of its tensors."""
        attention = name.removesuffix(".weight").rpartition(".")[0]
        if self._kv is None or attention not in self._attentions_to_write:
            return {}
        self._attentions_to_write.remove(attention)
        return encode_kv(attention, self._kv_scales[attention], self._kv)

    def _encode_matrix(self, name: str, tensor: Tensor | QuantizedTensor) -> dict[str, Tensor]:
        if not isinstance(tensor, QuantizedTensor):
            if tensor.ndim == 2 and name.endswith(".weight"):
                self._dense.append(name.removesuffix(".weight"))
            return {name: tensor.contiguous()}
        module, _, last = name.rpartition(".")
        if last != "weight" or not module:
            raise InvalidField("tensors", name, "a packed tensor must be called <module>.weight")
        quantizer: InputQuantizer | None = self._inputs.get(module)
        inputs = None if quantizer is None else quantizer.scheme
        layout = _layout(module, tensor.scheme, inputs)
        self._formats[module] = ModuleFormat(_as_declared(tensor.scheme), layout, inputs=inputs)
        if isinstance(tensor.scheme, FloatScheme) and tensor.scheme.granularity is Granularity.BLOCK:
            self._ragged += [module] if tensor.shape[1] % BLOCK else []
        parts = {f"{module}.{part}": stored for part, stored in encode_module(tensor, layout, quantizer).items()}
        if self._tied and layout is Layout.INT_QUANTIZED and module_class(module) is ModuleClass.EMBEDDING:
            copied = [part for part in (SCALE, ZERO_POINT) if f"{module}.{part}" in parts]
            parts |= {f"{HEAD_MODULE}.{part}": parts[f"{module}.{part}"].clone() for part in copied}
        return parts

    def quantization_config(self) -> dict[str, Any]:
        """Embedding groups come first: a target that another group's class also matches is looked up in the file's
        order by compressed-tensors."""
        if not self._formats:
            raise InvalidField("tensors", "dense", "at least one must be quantized")
        groups = [
            _group(targets, module_format)
            for kind in (ModuleClass.EMBEDDING, ModuleClass.LINEAR)
            for targets, module_format in self._targets(kind)
        ]
        formats = {group["format"] for group in groups}
        return {
            "quant_method": METHOD,
            "format": formats.pop() if len(formats) == 1 else MIXED_PRECISION,
            "quantization_status": "compressed",
            "config_groups": {f"group_{number}": group for number, group in enumerate(groups)},
            "ignore": self._ignored(),
            "global_compression_ratio": None,
            "kv_cache_scheme": None if self._kv is None else kv_args(self._kv),
            "version": LAYOUT_VERSION,
            "producer": PRODUCER,
        }

    def _targets(self, kind: ModuleClass) -> list[tuple[list[str], ModuleFormat]]:
        if not any(module_class(module) is kind for module in self._formats):
            return []
        groups = targets_by_format(self._formats, kind)
        if kind is ModuleClass.EMBEDDING and self._tied:
            return [
                ([*targets, HEAD_MODULE] if module_format.layout is Layout.INT_QUANTIZED else targets, module_format)
                for targets, module_format in groups
            ]
        return groups

    def _ignored(self) -> list[str]:
        """Dense matrices of the classes that are targeted, and a head that is nowhere else."""
        classes = {module_class(module) for module in self._formats}
        ignored = [module for module in self._dense if module_class(module) in classes]
        shares_codes = self._tied and any(
            module_class(module) is ModuleClass.EMBEDDING and found.layout is Layout.INT_QUANTIZED
            for module, found in self._formats.items()
        )
        has_head = shares_codes or HEAD_MODULE in self._formats or HEAD_MODULE in ignored
        return ignored if has_head or ModuleClass.LINEAR not in classes else [*ignored, HEAD_MODULE]

    def notes(self) -> tuple[str, ...]:
        notes = []
        schemes = [(module, found.scheme, found.layout) for module, found in self._formats.items()]
        for module, scheme, layout in schemes:
            if module_class(module) is ModuleClass.EMBEDDING and layout is not Layout.INT_QUANTIZED:
                notes.append(f"transformers 5.24 loads a quantized embedding of 8 bits only, not of {scheme.bits}")
        integers = [(scheme, layout) for _, scheme, layout in schemes if isinstance(scheme, IntegerScheme)]
        if any(not scheme.symmetric and layout is Layout.PACK_QUANTIZED for scheme, layout in integers):
            notes.append(
                "transformers with compressed-tensors 0.20 does not load packed zero points; symmetric schemes load"
            )
        if any(scheme.bits == 3 for scheme, _ in integers):
            notes.append("3-bit codes are packed densely: compressed-tensors reads them since 0.15, not before")
        if self._ragged:
            notes.append(
                f"inputs of {self._ragged[0]}{_and_more(self._ragged)} are no multiple of {BLOCK}: the last FP8 block "
                "of a row is smaller, which vLLM's kernels do not take"
            )
        if self._kv is not None:
            notes.append(
                "transformers 5.24 with compressed-tensors 0.20 passes over k_scale and v_scale and keeps its cache as "
                "it is; vLLM reads them"
            )
        if split := split_fused_members(self._formats, self._dense):
            notes.append(f"vLLM joins {split[0]}{_and_more(split)} and needs one scheme for its members")
        return tuple(notes)

    def files(self) -> dict[str, bytes]:
        return {}


def _attention_modules(model: StoredModel) -> set[str]:
    """Names of those that have KV scales. Raises `InvalidField` if other layers' attention has none, or one is not in
    the model: a config can only say it of all."""
    parents = {name.removesuffix(".weight").rpartition(".")[0] for name in model.tensors}
    forms = {re.sub(r"\d+", "#", attention) for attention in model.kv_scales}
    alike = {parent for parent in parents if re.sub(r"\d+", "#", parent) in forms}
    if unscaled := sorted(alike - set(model.kv_scales)):
        raise InvalidField("kv_scales", unscaled[0], "has none; either all layers' caches are quantized or none")
    if unknown := sorted(set(model.kv_scales) - parents):
        raise InvalidField("kv_scales", unknown[0], "the model has no module of this name")
    return alike


def _layout(module: str, scheme: Scheme, inputs: ActivationScheme | None) -> Layout:
    if isinstance(scheme, FloatScheme):
        plain = Layout.NAIVE_QUANTIZED if inputs is None else Layout.FLOAT_QUANTIZED
        return _FLOAT_LAYOUTS.get(scheme, plain)
    is_embedding = module_class(module) is ModuleClass.EMBEDDING
    return Layout.INT_QUANTIZED if scheme.bits == 8 and (is_embedding or inputs) else Layout.PACK_QUANTIZED


def _as_declared(scheme: Scheme) -> Scheme:
    """As a reader finds it again: ternary codes are 2-bit integers, scales of 16 bits are float32."""
    if isinstance(scheme, IntegerScheme):
        return IntegerScheme(2) if scheme.ternary else scheme
    is_short = scheme.scale_format is ScaleFormat.BFLOAT16
    return replace(scheme, scale_format=ScaleFormat.FLOAT32) if is_short else scheme


def _group(targets: list[str], module_format: ModuleFormat) -> dict[str, Any]:
    return {
        "targets": targets,
        "weights": weight_args(module_format.scheme),
        "input_activations": input_args(module_format.inputs),
        "output_activations": None,
        "format": module_format.layout.value,
    }


def _and_more(modules: list[str]) -> str:
    return f" (and {len(modules) - 1} more)" if len(modules) > 1 else ""
