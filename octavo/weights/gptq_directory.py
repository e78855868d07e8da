"""A Hugging Face directory quantized in the GPTQ format, version 1 or 2."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from torch import Tensor

from octavo.core.errors import CheckpointError
from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.numerics.scheme import IntegerScheme
from octavo.weights.gptq_config import parse_gptq_config, read_gptq_section
from octavo.weights.gptq_layout import (
    GROUP_INDEX,
    QWEIGHT,
    QZEROS,
    SCALES,
    GptqArgs,
    GptqModule,
    GptqVersion,
    decode_gptq,
    stored_zeros,
    version_of_symmetric,
)
from octavo.weights.packed_directory import PackedDirectory


class GptqDirectory(PackedDirectory):
    """Modules become `PackedTensor`s; a float32 matrix where inputs are grouped out of order (`desc_act`), where the
    last group is short, or where a group has a size that no `IntegerScheme` has: `notes` name them."""

    def __init__(self, source: Path) -> None:
        super().__init__(source, QWEIGHT, frozenset({QWEIGHT, QZEROS, SCALES}), frozenset({GROUP_INDEX}))
        self.quantization = parse_gptq_config(*read_gptq_section(source))
        for module in self.modules:
            self._args(module)
            if self.quantization.act_order and f"{module}.{GROUP_INDEX}" not in self._file_of:
                raise CheckpointError(f"{source}: tensor {module}.{GROUP_INDEX} is missing, though desc_act is true")

    @cached_property
    def version(self) -> GptqVersion:
        """What the zero points of a symmetric module tell, against the label if need be: files with version 2's
        zeros are about that call themselves version 1."""
        for module in self.modules:
            args = self._args(module)
            if args.symmetric:
                outputs, _ = self.packed_shape(module)
                zeros = stored_zeros(self.stored(f"{module}.{QZEROS}"), args.bits, outputs)
                return version_of_symmetric(zeros, args.bits) or self.quantization.version
        return self.quantization.version

    @property
    def notes(self) -> tuple[str, ...]:
        return self._found_notes

    @cached_property
    def _found_notes(self) -> tuple[str, ...]:
        """Where the data and the config disagree, and what could not stay packed. Reads zeros and group indices."""
        notes = list(self.quantization.notes)
        if self.version is not self.quantization.version:
            notes.append(
                f"checkpoint_format says {self.quantization.version}, but the symmetric zero points are those of "
                f"{self.version}; read as {self.version}"
            )
        modules = {module: self._read(module) for module in self.modules}
        unsymmetric = [name for name, one in modules.items() if one.args.symmetric and not one.has_symmetric_zeros]
        wrapped = [name for name, one in modules.items() if self.version is GptqVersion.V1 and (one.zeros == 0).any()]
        dense = [name for name, one in modules.items() if one.scheme is None]
        if unsymmetric:
            notes.append(f"sym is true, but zero points differ: read as asymmetric: {_some(unsymmetric)}")
        if wrapped:
            notes.append(
                "zero points that version 1 cannot hold (zero - 1 wraps) are read as 0, as a quantizer means them; "
                f"some kernels take 2^bits instead: {_some(wrapped)}"
            )
        if dense:
            notes.append(
                "inputs are grouped out of order (desc_act), or the last group is short or of a size without a packed "
                f"kernel here; kept as dense matrices of the same values: {_some(dense)}"
            )
        return tuple(notes)

    def decode(self, module: str) -> Tensor | QuantizedTensor:
        stored = self._read(module)
        return stored.dense() if stored.scheme is None else stored.packed(stored.scheme)

    def packed_shape(self, module: str) -> tuple[int, int]:
        rows, outputs = self.stored_shape(f"{module}.{QWEIGHT}")
        return outputs, rows * 32 // self._args(module).bits

    def scheme(self, name: str) -> IntegerScheme | None:
        module = self.packed_module(name)
        return None if module is None else self._read(module).scheme

    def tensor_type(self, name: str) -> str:
        module = self.packed_module(name)
        if module is None:
            return super().tensor_type(name)
        packed = self.scheme(name) is not None
        return (
            f"{self.version}" if packed else f"{self.version} {self._args(module)}, out of order (decoded to float32)"
        )

    def _args(self, module: str) -> GptqArgs:
        args = self.quantization.args_of(module)
        if args is None:
            raise CheckpointError(
                f"{self.source}: tensor {module}.{QWEIGHT} is there, but `dynamic` keeps {module} dense"
            )
        return args

    def _read(self, module: str) -> GptqModule:
        return decode_gptq(
            module, self.stored_parts(module), self._args(module), self.version, self.quantization.borrowed
        )


def _some(names: list[str], limit: int = 3) -> str:
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + rest
