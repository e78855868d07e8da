"""A Hugging Face directory in the fine-grained FP8 format (`quant_method: fp8`; DeepSeek-V3, Qwen3-FP8)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from octavo.core.errors import CheckpointError
from octavo.numerics.activations import ActivationFormat, ActivationScheme, InputQuantizer
from octavo.numerics.float_tensor import FloatTensor
from octavo.numerics.scheme import Scheme
from octavo.weights.checkpoint import CONFIG_NAME
from octavo.weights.fp8_blocks import INPUT_SCALE, SCALE, WEIGHT, decode_fp8
from octavo.weights.packed_directory import PackedDirectory

#: Which modules stay dense is seen in the tensors; `dequantize` is how some engine is to run the model.
_UNDERSTOOD = {
    "quant_method", "activation_scheme", "weight_block_size", "scale_fmt", "fmt", "expert_dtype", "dequantize",
    "modules_to_not_convert", "modules_to_convert", "ignored_layers", "producer",
}  # fmt: skip
_DYNAMIC = (
    "activation_scheme dynamic is how FP8 units multiply: inputs are rounded there, token by token and 128 inputs at a "
    "time. Here, as in transformers without such a unit, weights are dequantized and inputs are not rounded"
)


class Fp8Directory(PackedDirectory):
    """Modules become `FloatTensor`s. Scales are stored as `weight_scale_inv`, and multiply."""

    def __init__(self, source: Path) -> None:
        super().__init__(source, SCALE, frozenset({WEIGHT, SCALE}), frozenset({INPUT_SCALE}))
        self._section: dict[str, Any] = self.config["quantization_config"]
        self._where = f"{source / CONFIG_NAME}: quantization_config"
        self._check_section()
        for name in set(self.names()) - {f"{module}.{WEIGHT}" for module in self.modules}:
            if self.stored_dtype(name).startswith("F8"):
                raise CheckpointError(f"{source}: tensor {name} is FP8, but {SCALE} is missing beside it")

    def _check_section(self) -> None:
        for key, value in self._section.items():
            if key not in _UNDERSTOOD:
                raise CheckpointError(f"{self._where}.{key}: got {value!r}; this key is not understood")
        expected = {
            "activation_scheme": ("dynamic", "static"),
            "scale_fmt": ("float", "ue8m0"),
            "fmt": ("e4m3",),
            "expert_dtype": ("fp8",),
        }
        for key, values in expected.items():
            if self._section.get(key, values[0]) not in values:
                raise CheckpointError(f"{self._where}.{key}: got {self._section[key]!r}; {' or '.join(values)} is read")
        block = self._section.get("weight_block_size", [128, 128])
        is_block = (
            isinstance(block, list | tuple) and len(block) == 2 and all(isinstance(n, int) and n > 0 for n in block)
        )
        if block is not None and not is_block:
            raise CheckpointError(f"{self._where}.weight_block_size: got {block!r}; two sizes or null")
        self._block = None if block is None else (block[0], block[1])

    @property
    def notes(self) -> tuple[str, ...]:
        return () if self._section.get("activation_scheme") == "static" else (_DYNAMIC,)

    def decode(self, module: str) -> FloatTensor:
        parts = self.stored_parts(module)
        return decode_fp8(module, parts[WEIGHT], parts[SCALE], self._block)

    def packed_shape(self, module: str) -> tuple[int, int]:
        shape = self.stored_shape(f"{module}.{WEIGHT}")
        if len(shape) != 2:
            raise CheckpointError(f"{self.source}: {module}.{WEIGHT} is {list(shape)}, not a matrix")
        return shape[0], shape[1]

    def scheme(self, name: str) -> Scheme | None:
        module = self.packed_module(name)
        return None if module is None else self.decode(module).scheme

    def tensor_type(self, name: str) -> str:
        return super().tensor_type(name) if self.packed_module(name) is None else "fp8"

    def input_quantizer(self, module: str) -> InputQuantizer | None:
        if self._section.get("activation_scheme") != "static" or module not in self._parts:
            return None
        if INPUT_SCALE not in self._parts[module]:
            raise CheckpointError(
                f"{self.source}: tensor {module}.{INPUT_SCALE} is missing; activation_scheme is static"
            )
        scale = self.stored(f"{module}.{INPUT_SCALE}").to(torch.float32).reshape(-1)
        if scale.numel() != 1 or not 0 < float(scale) < float("inf"):
            raise CheckpointError(f"{module}.{INPUT_SCALE}: holds {scale.tolist()}, not one positive finite number")
        return InputQuantizer(ActivationScheme(ActivationFormat.E4M3, dynamic=False), scale)
