"""A second opinion on written GPTQ, AWQ, BitNet, FP8 and dense directories: bits taken apart one by one in numpy.

It shares no code with the writers: files, config keys and the formulas of quantization.md are all it knows. What it
decodes is compared with the numbers that were to be written.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open

from octavo.core.errors import CheckpointError
from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.weights.compressed_tensors_verification import Verification
from octavo.weights.stored_model import StoredModel

_AWQ_OUTPUT_OF_NIBBLE = np.array([0, 2, 4, 6, 1, 3, 5, 7])


def verify_directory(directory: Path, model: StoredModel) -> Verification:
    """Compare every tensor in `directory` with `model`'s, quantized ones as float32 numbers.

    Dense tensors must be equal once `model`'s are rounded to the stored dtype. Never raises for a difference; raises
    `CheckpointError` if a tensor is missing.
    """
    reader = SecondReader(directory)
    worst, largest, count = None, 0.0, 0
    for name in sorted(model.tensors):
        meant = model.tensors[name]
        theirs = reader.weight(name)
        dense = meant.dequantize() if isinstance(meant, QuantizedTensor) else meant
        if theirs.dtype != torch.float32:
            dense = dense.to(theirs.dtype)
        difference = float((theirs.to(torch.float32) - dense.to(torch.float32)).abs().max()) if dense.numel() else 0.0
        count += 1
        if worst is None or not difference <= largest:
            worst, largest = name, difference
    verified = largest == 0
    verdict = f"a second reader (bit by bit, from the format's definition) decodes {count} tensors; "
    verdict += "all equal the source's numbers" if verified else f"{worst} DIFFERS by {largest:.3g}"
    return Verification(verified, verdict, count, largest, worst)


class SecondReader:
    """Decodes one tensor at a time."""

    def __init__(self, directory: Path) -> None:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        self._section: dict[str, Any] = config.get("quantization_config") or {}
        self._directory = directory
        self._file_of: dict[str, Path] = {}
        for file in sorted(directory.glob("*.safetensors")):
            with safe_open(file, framework="pt") as opened:
                self._file_of |= dict.fromkeys(opened.keys(), file)

    def weight(self, name: str) -> torch.Tensor:
        """Float32 for a quantized matrix, the stored dtype for a dense tensor."""
        module = name.removesuffix(".weight")
        if f"{module}.qweight" in self._file_of:
            decode = self._gptq if self._section["quant_method"] == "gptq" else self._awq
            return torch.from_numpy(decode(module))
        if f"{module}.weight_scale" in self._file_of and self._section.get("quant_method") == "bitnet":
            return torch.from_numpy(self._bitnet(module))
        if f"{module}.weight_scale_inv" in self._file_of:
            return torch.from_numpy(self._fp8(module))
        return self._stored(name)

    def _gptq(self, module: str) -> np.ndarray:
        qweight, qzeros = self._array(f"{module}.qweight"), self._array(f"{module}.qzeros")
        group_of_input = self._array(f"{module}.g_idx")
        bits = qweight.shape[0] * 32 // len(group_of_input)
        codes = _bit_stream(qweight.T, bits)
        zeros = _bit_stream(qzeros, bits) + (1 if self._section["checkpoint_format"] == "gptq" else 0)
        scales = self._array(f"{module}.scales").astype(np.float32)
        return (codes - zeros[group_of_input].T).astype(np.float32) * scales[group_of_input].T

    def _awq(self, module: str) -> np.ndarray:
        codes = _awq_numbers(self._array(f"{module}.qweight"))
        zeros = _awq_numbers(self._array(f"{module}.qzeros"))
        scales = self._array(f"{module}.scales").astype(np.float32)
        inputs_in_group = len(codes) // len(scales)
        repeated = [np.repeat(values, inputs_in_group, axis=0) for values in (zeros, scales)]
        weight: np.ndarray = (codes - repeated[0]).astype(np.float32) * repeated[1]
        return np.ascontiguousarray(weight.T)

    def _bitnet(self, module: str) -> np.ndarray:
        packed = self._array(f"{module}.weight")
        quarters = [(packed // 4**quarter) % 4 for quarter in range(4)]
        codes = np.concatenate(quarters).astype(np.float32) - 1
        scale = self._array(f"{module}.weight_scale").astype(np.float32)
        return codes / scale if self._section["linear_class"] == "bitlinear" else codes * scale

    def _fp8(self, module: str) -> np.ndarray:
        codes = self._stored(f"{module}.weight").view(torch.uint8).numpy().astype(np.int32)
        exponent, mantissa = codes >> 3 & 15, (codes & 7).astype(np.float32)
        magnitude = np.where(exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
        values = np.where(codes & 128, -magnitude, magnitude).astype(np.float32)
        scale = self._array(f"{module}.weight_scale_inv").astype(np.float32)
        if scale.ndim == 2:
            rows, columns = self._section["weight_block_size"]
            scale = np.repeat(np.repeat(scale, rows, axis=0), columns, axis=1)[: len(codes), : codes.shape[1]]
        return np.ascontiguousarray(values * scale)

    def _array(self, name: str) -> np.ndarray:
        return self._stored(name).numpy()

    def _stored(self, name: str) -> torch.Tensor:
        if name not in self._file_of:
            raise CheckpointError(f"{self._directory}: tensor {name} was not written")
        with safe_open(self._file_of[name], framework="pt") as opened:
            tensor: torch.Tensor = opened.get_tensor(name)
        return tensor


def _bit_stream(words: np.ndarray, bits: int) -> np.ndarray:
    """Numbers of `bits` bits, lowest bit first, along each row of int32 words."""
    rows = np.ascontiguousarray(words).view(np.uint8)
    stream = np.unpackbits(rows, axis=1, bitorder="little")
    numbers: np.ndarray = stream.reshape(len(rows), -1, bits).astype(np.int32) @ (1 << np.arange(bits))
    return numbers


def _awq_numbers(words: np.ndarray) -> np.ndarray:
    """Nibble by nibble, each at the output that it belongs to: `[rows, outputs]`."""
    numbers = np.zeros((len(words), words.shape[1], 8), dtype=np.int32)
    for nibble, output in enumerate(_AWQ_OUTPUT_OF_NIBBLE):
        numbers[:, :, output] = (words.view(np.uint32) >> np.uint32(4 * nibble)) & np.uint32(15)
    return numbers.reshape(len(words), -1)
