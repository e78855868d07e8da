"""Writes a model as a plain Hugging Face directory: quantized matrices as the dense numbers they stand for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from octavo.core.errors import InvalidField
from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.weights.model_directory import WrittenCheckpoint, write_model_directory
from octavo.weights.shard_writer import DEFAULT_SHARD_BYTES
from octavo.weights.stored_model import StoredModel

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def write_dense(
    directory: Path,
    model: StoredModel,
    dtype: torch.dtype,
    *,
    overwrite: bool = False,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
) -> WrittenCheckpoint:
    """Write `directory` whole or not at all, every number as `dtype`, which config.json then names.

    Raises `InvalidField` naming the tensor whose numbers `dtype` cannot hold (float16 ends at 65,504).
    """
    key = "torch_dtype" if "torch_dtype" in model.config else "dtype"
    config = {**model.config, key: str(dtype).removeprefix("torch.")}
    dense = StoredModel(model.tensors, config, model.tokenizer, extra_files=model.extra_files)
    return write_model_directory(directory, dense, _Encoder(model, dtype), overwrite=overwrite, shard_bytes=shard_bytes)


def as_dense(name: str, tensor: Tensor | QuantizedTensor, dtype: torch.dtype) -> Tensor:
    """The numbers as `dtype`; integers stay what they are. Raises `InvalidField` where one overflows."""
    values = tensor.dequantize() if isinstance(tensor, QuantizedTensor) else tensor
    if not values.is_floating_point():
        return values.contiguous()
    stored = values.to(dtype).contiguous()
    if torch.isfinite(values).all() and not torch.isfinite(stored).all():
        largest = float(values.abs().max())
        raise InvalidField("dtype", str(dtype).removeprefix("torch."), f"{name} reaches {largest:.3g}; use bfloat16")
    return stored


class _Encoder:
    """An `Encoder` of `model_directory`."""

    def __init__(self, model: StoredModel, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._notes = [
            f"{what} of {len(lost)} modules are left out: a dense model has none"
            for what, lost in (("input quantizers", model.inputs), ("KV scales", model.kv_scales))
            if lost
        ]

    def encode(self, name: str, tensor: Tensor | QuantizedTensor) -> dict[str, Tensor]:
        return {name: as_dense(name, tensor, self._dtype)}

    def quantization_config(self) -> dict[str, Any] | None:
        return None

    def notes(self) -> tuple[str, ...]:
        return tuple(self._notes)

    def files(self) -> dict[str, bytes]:
        return {}
