"""Writes a ternary model as a Hugging Face directory that transformers loads as BitNet.

`autobitlinear` stores the scale itself, so nothing is rounded. A linear with a bias makes it `bitlinear`, because
transformers 5.24's `AutoBitLinear` multiplies the bias by the scale as well.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from octavo.core.errors import InvalidField
from octavo.numerics.activations import ActivationFormat
from octavo.numerics.packed_tensor import PackedTensor
from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.numerics.scheme import LinearScheme
from octavo.weights.bitnet_directory import METHOD
from octavo.weights.bitnet_layout import CODES_IN_BYTE, TERNARY, LinearClass, encode_bitnet
from octavo.weights.compressed_tensors_config import HEAD_MODULE, ModuleClass, module_class
from octavo.weights.linear_encoder import LinearEncoder, refuse_extras
from octavo.weights.model_directory import PRODUCER, WrittenCheckpoint, write_model_directory
from octavo.weights.shard_writer import DEFAULT_SHARD_BYTES
from octavo.weights.stored_model import StoredModel

_LOADING = (
    "transformers rounds weight_scale to the dtype a model is loaded in, and with autobitlinear leaves dense tensors "
    "in the dtype of the file: load in the dtype that config.json names, float32 for the exact scale"
)


def write_bitnet(
    directory: Path,
    model: StoredModel,
    *,
    linear_class: LinearClass | None = None,
    overwrite: bool = False,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
) -> WrittenCheckpoint:
    """Write `directory` whole or not at all. `linear_class` None: bitlinear where a linear has a bias, otherwise
    autobitlinear.

    Raises `InvalidField` naming the module that the format cannot hold without loss, and why.
    """
    refuse_extras(METHOD, model, inputs=False)
    has_bias = any(name.endswith(".bias") for name in model.tensors)
    chosen = linear_class or (LinearClass.DIVIDES if has_bias else LinearClass.MULTIPLIES)
    encoder = _Encoder(model, chosen)
    return write_model_directory(directory, model, encoder, overwrite=overwrite, shard_bytes=shard_bytes)


def bitnet_refusal(module: str, linear: LinearScheme, shape: tuple[int, int]) -> str | None:
    """Why the format cannot hold this module; None: it can, as far as sizes and scheme tell."""
    if linear.weights != TERNARY:
        return f"it is {linear.weights}; BitNet holds ternary weights with one scale, which take training to make"
    if module_class(module) is ModuleClass.EMBEDDING:
        return "it is a quantized embedding; BitNet quantizes linears only"
    inputs = linear.inputs
    if inputs is None or inputs.format is not ActivationFormat.INT8 or not inputs.dynamic:
        return f"its inputs are {inputs or 'not rounded'}; BitNet's are int8 per token"
    if shape[0] % CODES_IN_BYTE:
        return f"{shape[0]} outputs do not fill whole bytes: BitNet needs a multiple of {CODES_IN_BYTE}"
    return None


class _Encoder(LinearEncoder):
    def __init__(self, model: StoredModel, linear_class: LinearClass) -> None:
        super().__init__(METHOD)
        self._model = model
        self._linear_class = linear_class
        self._modules: list[str] = []

    def refusal(self, module: str, tensor: QuantizedTensor) -> str | None:
        quantizer = self._model.inputs.get(module)
        linear = LinearScheme(tensor.scheme, None if quantizer is None else quantizer.scheme)
        return bitnet_refusal(module, linear, tensor.shape)

    def parts(self, module: str, tensor: PackedTensor) -> dict[str, Tensor]:
        if not torch.equal(tensor.scale, tensor.scale[:1].expand_as(tensor.scale)):
            raise InvalidField("format", METHOD, f"{module}: its rows have different scales; BitNet has one a matrix")
        if self._linear_class is LinearClass.MULTIPLIES and f"{module}.bias" in self._model.tensors:
            expected = f"{module} has a bias, which transformers would multiply by the scale; use bitlinear"
            raise InvalidField("linear_class", self._linear_class.value, expected)
        self._modules.append(module)
        return encode_bitnet(tensor, self._linear_class)

    def section(self) -> dict[str, Any]:
        head = [] if HEAD_MODULE in self._modules else [HEAD_MODULE]
        return {
            "quant_method": METHOD,
            "linear_class": self._linear_class.value,
            "quantization_mode": "offline",
            "modules_to_not_convert": [*self.dense, *head],
            "producer": PRODUCER,
        }

    def notes(self) -> tuple[str, ...]:
        return (_LOADING,)
