"""Writes a quantized model as a Hugging Face directory in AutoAWQ's GEMM format: 4 bits, one group size for all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from octavo.numerics.packed_tensor import PackedTensor
from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.numerics.scheme import IntegerScheme, LinearScheme
from octavo.weights.awq_directory import METHOD
from octavo.weights.awq_layout import BITS, CODES_IN_WORD, SCALES, encode_awq
from octavo.weights.compressed_tensors_config import HEAD_MODULE, ModuleClass, module_class
from octavo.weights.gptq_writer import NEGATIVE_SCALES
from octavo.weights.linear_encoder import LinearEncoder, refuse_extras
from octavo.weights.model_directory import PRODUCER, WrittenCheckpoint, write_model_directory
from octavo.weights.scale_precision import exactly_as
from octavo.weights.shard_writer import DEFAULT_SHARD_BYTES
from octavo.weights.stored_model import StoredModel

_SYMMETRIC = "symmetric modules are written with the zero point 8 that their codes are about; values are the same"


def write_awq(
    directory: Path, model: StoredModel, *, overwrite: bool = False, shard_bytes: int = DEFAULT_SHARD_BYTES
) -> WrittenCheckpoint:
    """Write `directory` whole or not at all.

    Raises `InvalidField` naming the module that the format cannot hold without loss, and why.
    """
    refuse_extras(METHOD, model)
    return write_model_directory(directory, model, _Encoder(), overwrite=overwrite, shard_bytes=shard_bytes)


def awq_refusal(module: str, linear: LinearScheme, shape: tuple[int, int]) -> str | None:
    """Why the format cannot hold this module; None: it can, as far as its own scheme and sizes tell."""
    scheme = linear.weights
    if not isinstance(scheme, IntegerScheme) or scheme.bits != BITS:
        return f"it is {scheme}; AWQ's GEMM format holds integers of 4 bits"
    if linear.inputs is not None:
        return f"its inputs are {linear.inputs}; AWQ has weights only"
    if module_class(module) is ModuleClass.EMBEDDING:
        return "it is a quantized embedding; AWQ quantizes linears only"
    if module == HEAD_MODULE:
        return "it is the output head, which AWQ's readers expect dense"
    if shape[0] % CODES_IN_WORD:
        return f"{shape[0]} outputs do not fill whole words: AWQ needs a multiple of {CODES_IN_WORD}"
    return None


class _Encoder(LinearEncoder):
    def __init__(self) -> None:
        super().__init__(METHOD)
        self._schemes: dict[str, IntegerScheme] = {}
        self._has_negative_scales = False

    def refusal(self, module: str, tensor: QuantizedTensor) -> str | None:
        return awq_refusal(module, LinearScheme(tensor.scheme), tensor.shape) or self._other_group(tensor)

    def parts(self, module: str, tensor: PackedTensor) -> dict[str, Tensor]:
        self._schemes[module] = tensor.scheme
        parts = encode_awq(tensor)
        parts[SCALES] = exactly_as(module, parts[SCALES], torch.float16, METHOD)
        self._has_negative_scales |= bool((parts[SCALES] < 0).any())
        return parts

    def _other_group(self, tensor: QuantizedTensor) -> str | None:
        for module, scheme in self._schemes.items():
            if scheme.group_size != tensor.scheme.group_size:
                return f"it is {tensor.scheme}, {module} is {scheme}; AWQ has one group size for the whole model"
        return None

    def section(self) -> dict[str, Any]:
        return {
            "quant_method": METHOD,
            "bits": BITS,
            "group_size": next(iter(self._schemes.values())).group_size or -1,
            "zero_point": True,
            "version": "gemm",
            "modules_to_not_convert": [*self.dense, HEAD_MODULE],
            "producer": PRODUCER,
        }

    def notes(self) -> tuple[str, ...]:
        symmetric = any(scheme.symmetric for scheme in self._schemes.values())
        return (*([_SYMMETRIC] if symmetric else []), *([NEGATIVE_SCALES] if self._has_negative_scales else []))
