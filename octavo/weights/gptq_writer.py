"""Writes a quantized model as a Hugging Face directory in the GPTQ format.

Symmetric models are written as version 1, which every engine reads; with zero points version 2, because version 1
cannot hold a zero of 0. Groups stay in order (`g_idx` counts up): engines need no reordering, and tensor parallelism
works. Our symmetric scales may be negative: value = scale * (code - zero) holds all the same.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from octavo import __version__
from octavo.core.errors import InvalidField
from octavo.numerics.packed_tensor import PackedTensor
from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.numerics.scheme import IntegerScheme, LinearScheme
from octavo.weights.compressed_tensors_config import ModuleClass, module_class
from octavo.weights.gptq_config import METHOD, QUANTIZE_CONFIG_NAME, make_gptq_config
from octavo.weights.gptq_layout import SCALES, GptqArgs, GptqVersion, encode_gptq
from octavo.weights.linear_encoder import LinearEncoder, refuse_extras
from octavo.weights.model_directory import PRODUCER, WrittenCheckpoint, write_model_directory
from octavo.weights.scale_precision import exactly_as
from octavo.weights.shard_writer import DEFAULT_SHARD_BYTES
from octavo.weights.stored_model import StoredModel

NEGATIVE_SCALES = (
    "symmetric scales may be negative, as AutoRound's are: engines multiply by them as they are, but vLLM's Marlin "
    "kernel with int8 activations (VLLM_MARLIN_INPUT_DTYPE=int8) reads them as unsigned (vLLM issue 48905)"
)
_EXCEPTIONS = (
    "modules differ in their scheme or are dense: `dynamic` says which, and engines that do not know that key "
    "(AutoGPTQ, exllamav2) will misread the file; vLLM matches its patterns against fused names (qkv_proj)"
)
_VERSION_2 = "zero points are asymmetric: written as gptq_v2, which readers of before 2024 take for version 1"


def write_gptq(
    directory: Path,
    model: StoredModel,
    *,
    version: GptqVersion | None = None,
    overwrite: bool = False,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
) -> WrittenCheckpoint:
    """Write `directory` whole or not at all. `version` None: 1 for symmetric models, 2 with zero points.

    Raises `InvalidField` naming the module that the format cannot hold without loss, and why.
    """
    if version is None:
        symmetric = all(_is_symmetric(tensor) for tensor in model.tensors.values())
        version = GptqVersion.V1 if symmetric else GptqVersion.V2
    refuse_extras(METHOD, model)
    encoder = _Encoder(version)
    return write_model_directory(directory, model, encoder, overwrite=overwrite, shard_bytes=shard_bytes)


def gptq_refusal(module: str, linear: LinearScheme, shape: tuple[int, int]) -> str | None:
    """Why the format cannot hold this module; None: it can, as far as sizes and scheme tell."""
    scheme, (outputs, inputs) = linear.weights, shape
    if not isinstance(scheme, IntegerScheme):
        return f"it is {scheme}; GPTQ holds integers of 2, 3, 4 and 8 bits"
    if linear.inputs is not None:
        return f"its inputs are {linear.inputs}; GPTQ has weights only"
    if module_class(module) is ModuleClass.EMBEDDING:
        return "it is a quantized embedding; GPTQ quantizes linears only"
    codes_in_words = 32 if scheme.bits == 3 else 32 // scheme.bits
    for name, size in (("inputs", inputs), ("outputs", outputs)):
        if size % codes_in_words:
            return f"{size} {name} do not fill whole words: {scheme.bits}-bit GPTQ needs a multiple of {codes_in_words}"
    return None


class _Encoder(LinearEncoder):
    def __init__(self, version: GptqVersion) -> None:
        super().__init__(METHOD)
        self._version = version
        self._modules: dict[str, GptqArgs] = {}
        self._has_negative_scales = False

    def refusal(self, module: str, tensor: QuantizedTensor) -> str | None:
        return gptq_refusal(module, LinearScheme(tensor.scheme), tensor.shape)

    def parts(self, module: str, tensor: PackedTensor) -> dict[str, Tensor]:
        self._refuse_zeros(module, tensor)
        scheme = tensor.scheme
        self._modules[module] = GptqArgs(scheme.bits, scheme.group_size or -1, scheme.symmetric)
        parts = encode_gptq(tensor, self._version)
        parts[SCALES] = exactly_as(module, parts[SCALES], torch.float16, METHOD)
        self._has_negative_scales |= bool((parts[SCALES] < 0).any())
        return parts

    def _refuse_zeros(self, module: str, tensor: PackedTensor) -> None:
        if self._version is GptqVersion.V2 or tensor.zero_point is None:
            return
        wrapping = int((tensor.zero_point == tensor.scheme.lowest).sum())
        if wrapping:
            expected = (
                f"{wrapping} of {tensor.zero_point.numel()} zero points of {module} are 0, and version 1 stores "
                "zero - 1; write gptq_v2"
            )
            raise InvalidField("version", self._version.value, expected)

    def section(self) -> dict[str, Any]:
        return make_gptq_config(self._modules, self.dense, self._version, f"{PRODUCER}:{__version__}")

    def notes(self) -> tuple[str, ...]:
        notes = [_VERSION_2] if self._version is GptqVersion.V2 else []
        if len(set(self._modules.values())) > 1 or self.dense:
            notes.append(_EXCEPTIONS)
        return (*notes, NEGATIVE_SCALES) if self._has_negative_scales else tuple(notes)

    def files(self) -> dict[str, bytes]:
        section = {key: value for key, value in self.section().items() if value is not None}
        return {QUANTIZE_CONFIG_NAME: (json.dumps(section, indent=2) + "\n").encode()}


def _is_symmetric(tensor: Tensor | QuantizedTensor) -> bool:
    return not isinstance(tensor, PackedTensor) or tensor.scheme.symmetric
