"""What encoders of GPTQ, AWQ and BitNet share: these formats hold quantized linears, and dense tensors beside them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor

from octavo.core.errors import InvalidField
from octavo.numerics.packed_tensor import PackedTensor
from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.weights.compressed_tensors_config import ModuleClass, module_class
from octavo.weights.model_directory import HEAD_WEIGHT
from octavo.weights.stored_model import StoredModel


class LinearEncoder(ABC):
    """An `Encoder` of `model_directory`. `dense` are the linears met that are not quantized, the head aside."""

    def __init__(self, format_name: str) -> None:
        self.format_name = format_name
        self.dense: list[str] = []
        self._has_quantized = False

    def encode(self, name: str, tensor: Tensor | QuantizedTensor) -> dict[str, Tensor]:
        module = name.removesuffix(".weight")
        if not isinstance(tensor, QuantizedTensor):
            if _is_linear(name, tensor):
                self.dense.append(module)
            return {name: tensor.contiguous()}
        reason = self.refusal(module, tensor)
        if reason is not None:
            raise InvalidField("format", self.format_name, f"{module}: {reason}")
        assert isinstance(tensor, PackedTensor)
        self._has_quantized = True
        return {f"{module}.{part}": stored for part, stored in self.parts(module, tensor).items()}

    def quantization_config(self) -> dict[str, Any]:
        if not self._has_quantized:
            raise InvalidField("tensors", "dense", "at least one must be quantized; write format hf")
        return self.section()

    def files(self) -> dict[str, bytes]:
        return {}

    @abstractmethod
    def refusal(self, module: str, tensor: QuantizedTensor) -> str | None:
        """Why the format cannot hold it; None: it is a `PackedTensor` that `parts` takes."""

    @abstractmethod
    def parts(self, module: str, tensor: PackedTensor) -> dict[str, Tensor]:
        """What is stored of a module, by the names of its parts. Raises `InvalidField`."""

    @abstractmethod
    def section(self) -> dict[str, Any]:
        """`quantization_config` of a model that has quantized modules."""

    @abstractmethod
    def notes(self) -> tuple[str, ...]: ...


def refuse_extras(format_name: str, model: StoredModel, inputs: bool = True) -> None:
    """Raise `InvalidField` for KV scales, and for input quantizers, where a format has no place for them."""
    if model.kv_scales:
        module = next(iter(model.kv_scales))
        raise InvalidField("format", format_name, f"it has no place for the KV cache's scales ({module})")
    if inputs and model.inputs:
        module, quantizer = next(iter(model.inputs.items()))
        raise InvalidField("format", format_name, f"it has no place for rounded inputs ({module}: {quantizer.scheme})")


def _is_linear(name: str, tensor: Tensor) -> bool:
    """Whether a reader would look for a quantized linear here; the head is named apart."""
    is_matrix = tensor.ndim == 2 and name.endswith(".weight") and name != HEAD_WEIGHT
    return is_matrix and module_class(name.removesuffix(".weight")) is ModuleClass.LINEAR
