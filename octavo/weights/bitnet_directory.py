"""A BitNet b1.58 model as transformers stores it: ternary weights, inputs rounded to int8 per token."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octavo.core.errors import CheckpointError
from octavo.numerics.activations import ActivationFormat, ActivationScheme, InputQuantizer
from octavo.numerics.packed_tensor import PackedTensor
from octavo.numerics.scheme import IntegerScheme
from octavo.weights.bitnet_layout import (
    CODES_IN_BYTE,
    SCALE,
    TERNARY,
    WEIGHT,
    LinearClass,
    absmean_ternary,
    decode_bitnet,
)
from octavo.weights.checkpoint import CONFIG_NAME
from octavo.weights.compressed_tensors_config import HEAD_MODULE, ModuleClass, module_class
from octavo.weights.packed_directory import PackedDirectory
from octavo.weights.safetensors_directory import read_json

METHOD = "bitnet"
INPUTS = InputQuantizer(ActivationScheme(ActivationFormat.INT8))
_KNOWN = {"quant_method", "linear_class", "quantization_mode", "use_rms_norm", "rms_norm_eps", "modules_to_not_convert"}
_KNOWN |= {"producer"}


class BitNetDirectory(PackedDirectory):
    """Modules become ternary `PackedTensor`s with inputs rounded to int8 per token. Dense weights of
    `quantization_mode: online` are rounded when they are read, as transformers rounds them in every step."""

    def __init__(self, source: Path) -> None:
        where = f"{source / CONFIG_NAME}: quantization_config"
        section = read_json(source / CONFIG_NAME)["quantization_config"]
        _refuse_unknown(section, where)
        self.linear_class = LinearClass(section.get("linear_class", LinearClass.DIVIDES))
        self._online = section.get("quantization_mode", "offline") == "online"
        kept = section.get("modules_to_not_convert")
        self._kept = (HEAD_MODULE,) if kept is None else tuple(kept)
        if self._online:
            super().__init__(source, WEIGHT, frozenset({WEIGHT}), frozenset())
        else:
            super().__init__(source, SCALE, frozenset({WEIGHT, SCALE}), frozenset())
        self._check_biases()

    def is_packed(self, module: str) -> bool:
        if not self._online:
            return True
        is_matrix = len(self.stored_shape(f"{module}.{WEIGHT}")) == 2
        return is_matrix and module_class(module) is ModuleClass.LINEAR and not self._is_kept(module)

    def decode(self, module: str) -> PackedTensor:
        if self._online:
            return absmean_ternary(self.stored(f"{module}.{WEIGHT}"))
        return decode_bitnet(module, self.stored_parts(module), self.linear_class)

    def packed_shape(self, module: str) -> tuple[int, int]:
        rows, inputs = self.stored_shape(f"{module}.{WEIGHT}")
        return (rows if self._online else rows * CODES_IN_BYTE), inputs

    def scheme(self, name: str) -> IntegerScheme | None:
        return None if self.packed_module(name) is None else TERNARY

    def tensor_type(self, name: str) -> str:
        if self.packed_module(name) is None:
            return super().tensor_type(name)
        return "bitnet online" if self._online else f"bitnet {self.linear_class}"

    def input_quantizer(self, module: str) -> InputQuantizer | None:
        return INPUTS if module in self._parts else None

    def _is_kept(self, module: str) -> bool:
        """transformers' rule: a pattern from the start to a boundary, or a suffix."""
        return any(re.match(rf"(?:{key})(?:\.|$)", module) or module.endswith(key) for key in self._kept)

    def _check_biases(self) -> None:
        """transformers multiplies the bias too (`AutoBitLinear`), which hardly any file means."""
        if self._online or self.linear_class is LinearClass.DIVIDES:
            return
        for module in self.modules:
            if f"{module}.bias" in self._file_of:
                reason = "transformers' autobitlinear multiplies a bias by weight_scale; whether it is meant is unknown"
                raise CheckpointError(f"{self.source}: tensor {module}.bias: {reason}; bitlinear adds it as it is")


def _refuse_unknown(section: Mapping[str, Any], where: str) -> None:
    for key in section:
        if key not in _KNOWN:
            raise CheckpointError(f"{where}.{key}: got {section[key]!r}; this key is not understood")
    if section.get("use_rms_norm"):
        raise CheckpointError(f"{where}.use_rms_norm: got True; a norm inside each linear is not read")
    for key, values in (("linear_class", list(LinearClass)), ("quantization_mode", ["offline", "online"])):
        if section.get(key, values[0]) not in values:
            raise CheckpointError(f"{where}.{key}: got {section[key]!r}; {' or '.join(values)}")
    if section.get("quantization_mode") == "online" and section.get("linear_class") != LinearClass.MULTIPLIES:
        raise CheckpointError(f"{where}.quantization_mode: online goes with linear_class autobitlinear only")
