"""Writes a model of FP8 blocks as a Hugging Face directory in the fine-grained FP8 format.

transformers 5.24 divides a matrix evenly by its grid of scales, whatever the config says: where 128 leaves a rest it
refuses the file (576 rows, 5 scales) or takes blocks of another size (192 rows, 2 scales: 96) and computes nonsense.
So where 128 does not divide all sizes the blocks are written smaller, their scales repeated: the same numbers, for
every reader.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from octavo.core.errors import InvalidField
from octavo.numerics.activations import ActivationFormat, InputQuantizer
from octavo.numerics.float_scheme import BLOCK, FloatFormat, FloatScheme, Granularity
from octavo.numerics.float_tensor import FloatTensor
from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.numerics.scheme import LinearScheme
from octavo.weights.compressed_tensors_config import ModuleClass, module_class
from octavo.weights.fp8_blocks import INPUT_SCALE, METHOD, SCALE, WEIGHT, common_block, repeat_scales
from octavo.weights.model_directory import HEAD_WEIGHT, PRODUCER, WrittenCheckpoint, write_model_directory
from octavo.weights.shard_writer import DEFAULT_SHARD_BYTES
from octavo.weights.stored_model import StoredModel

_E4M3 = torch.float8_e4m3fn
_HEAD = HEAD_WEIGHT.removesuffix(".weight")


def write_fp8(
    directory: Path, model: StoredModel, *, overwrite: bool = False, shard_bytes: int = DEFAULT_SHARD_BYTES
) -> WrittenCheckpoint:
    """Write `directory` whole or not at all. Raises `InvalidField` naming the module that the format cannot hold, and
    why."""
    if model.kv_scales:
        raise InvalidField("format", METHOD, f"it has no place for KV scales ({next(iter(model.kv_scales))})")
    encoder = _Encoder(model)
    return write_model_directory(directory, model, encoder, overwrite=overwrite, shard_bytes=shard_bytes)


def fp8_refusal(module: str, linear: LinearScheme, shape: tuple[int, int]) -> str | None:
    """Why the format cannot hold this module; None: it can."""
    scheme, inputs = linear.weights, linear.inputs
    wanted = "quantize with fp8-block, or fp8-static, and keep the embedding (16 bits)"
    if not isinstance(scheme, FloatScheme) or scheme.format is not FloatFormat.E4M3:
        return f"it is {scheme}; the format holds E4M3: {wanted}"
    if module_class(module) is ModuleClass.EMBEDDING:
        return f"it is an embedding; the format quantizes linears: {wanted}"
    if scheme.granularity not in (Granularity.BLOCK, Granularity.TENSOR):
        return f"its scales are {scheme.granularity}; the format has them by block or by matrix: {wanted}"
    known = {
        Granularity.BLOCK: (None, ActivationFormat.E4M3_GROUPS),
        Granularity.TENSOR: (None, ActivationFormat.E4M3),
    }[scheme.granularity]
    if (None if inputs is None else inputs.format) not in known:
        return f"its inputs are {inputs}; with weights {scheme.granularity} the format cannot say that"
    return None


class _Encoder:
    """An `Encoder` of `model_directory`."""

    def __init__(self, model: StoredModel) -> None:
        self._inputs = model.inputs
        self._dense: list[str] = []
        blocked = [tensor for tensor in model.tensors.values() if _is_blocked(tensor)]
        self._has_blocks = bool(blocked)
        self._block = common_block((tensor.shape[0], tensor.shape[1]) for tensor in blocked)
        self._static: set[bool] = set()
        self._granularities: set[Granularity] = set()

    def encode(self, name: str, tensor: Tensor | QuantizedTensor) -> dict[str, Tensor]:
        module = name.removesuffix(".weight")
        if not isinstance(tensor, QuantizedTensor):
            if tensor.ndim == 2 and name.endswith(".weight") and module_class(module) is ModuleClass.LINEAR:
                self._dense.append(module)
            return {name: tensor.contiguous()}
        quantizer: InputQuantizer | None = self._inputs.get(module)
        linear = LinearScheme(tensor.scheme, None if quantizer is None else quantizer.scheme)
        reason = fp8_refusal(module, linear, tensor.shape)
        if reason is not None:
            raise InvalidField("format", METHOD, f"{module}: {reason}")
        assert isinstance(tensor, FloatTensor)
        self._granularities.add(tensor.scheme.granularity)
        self._static.add(quantizer is not None and quantizer.scale is not None)
        parts = {f"{module}.{WEIGHT}": tensor.codes.contiguous().view(_E4M3), f"{module}.{SCALE}": self._scale(tensor)}
        if quantizer is not None and quantizer.scale is not None:
            parts[f"{module}.{INPUT_SCALE}"] = quantizer.scale.reshape(())
        return parts

    def _scale(self, tensor: FloatTensor) -> Tensor:
        if tensor.scheme.granularity is Granularity.TENSOR:
            return tensor.scale.to(torch.float32).reshape(())
        return repeat_scales(tensor, self._block or BLOCK)

    def quantization_config(self) -> dict[str, Any]:
        if not self._granularities:
            raise InvalidField("tensors", "dense", "at least one must be quantized; write format hf")
        if len(self._granularities) > 1 or len(self._static) > 1:
            raise InvalidField("format", METHOD, "all modules must have scales of one kind, and inputs of one kind")
        block = self._block or BLOCK
        return {
            "quant_method": METHOD,
            "activation_scheme": "static" if True in self._static else "dynamic",
            "weight_block_size": [block, block] if self._has_blocks else None,
            "modules_to_not_convert": [*self._dense, *([] if _HEAD in self._dense else [_HEAD])],
            "producer": PRODUCER,
        }

    def notes(self) -> tuple[str, ...]:
        notes = []
        if self._has_blocks and self._block is None:
            notes.append(
                f"no block divides all sizes, so the last blocks are smaller ({BLOCK} x {BLOCK}, ragged): readers that "
                "round up take them, transformers 5.24 refuses or misreads them"
            )
        elif self._has_blocks and self._block != BLOCK:
            notes.append(
                f"{BLOCK} does not divide all sizes: blocks are written as {self._block} x {self._block}, scales "
                "repeated, which every reader decodes alike; kernels for blocks of 128 alone (DeepGEMM) do not run it"
            )
        if False in self._static:
            notes.append("engines with FP8 units round inputs token by token (activation_scheme dynamic)")
        return tuple(notes)

    def files(self) -> dict[str, bytes]:
        return {}


def _is_blocked(tensor: Tensor | QuantizedTensor) -> bool:
    return isinstance(tensor, FloatTensor) and tensor.scheme.granularity is Granularity.BLOCK
