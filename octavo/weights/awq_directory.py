"""A Hugging Face directory quantized in AutoAWQ's GEMM format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octavo.core.errors import CheckpointError
from octavo.numerics.packed_tensor import PackedTensor
from octavo.numerics.scheme import GROUP_SIZES, IntegerScheme
from octavo.weights.awq_layout import BITS, CODES_IN_WORD, QWEIGHT, QZEROS, SCALES, decode_awq, decode_zeros
from octavo.weights.checkpoint import CONFIG_NAME
from octavo.weights.packed_directory import PackedDirectory
from octavo.weights.safetensors_directory import read_json

METHOD = "awq"
#: Of before AutoAWQ wrote into config.json.
QUANT_CONFIG_NAME = "quant_config.json"
_UNDERSTOOD = {"quant_method", "bits", "w_bit", "group_size", "q_group_size", "zero_point", "version", "format"}
#: Which modules stay dense is seen in the tensors; the rest is how some engine is to run the model.
_HISTORY = {"modules_to_not_convert", "backend", "do_fuse", "exllama_config", "fuse_max_seq_len", "modules_to_fuse"}
_HISTORY |= {"producer", "meta", "sym", "lm_head", "pack_dtype", "desc_act", "checkpoint_format", "method", "dynamic"}


class AwqDirectory(PackedDirectory):
    """Modules become `PackedTensor`s of 4 bits, symmetric ones where every zero point is 8."""

    def __init__(self, source: Path) -> None:
        parts = frozenset({QWEIGHT, QZEROS, SCALES})
        super().__init__(source, QWEIGHT, parts, frozenset())
        section, where = _read_section(source)
        self.group_size = _parse(section, where)
        self._notes = tuple(
            f"quantization_config.{key} is not known to Octavo and was passed over"
            for key in sorted(set(section) - _UNDERSTOOD - _HISTORY)
        )

    @property
    def notes(self) -> tuple[str, ...]:
        return self._notes

    def decode(self, module: str) -> PackedTensor:
        return decode_awq(module, self.stored_parts(module), self.group_size)

    def packed_shape(self, module: str) -> tuple[int, int]:
        inputs, words = self.stored_shape(f"{module}.{QWEIGHT}")
        return words * CODES_IN_WORD, inputs

    def scheme(self, name: str) -> IntegerScheme | None:
        module = self.packed_module(name)
        if module is None:
            return None
        outputs, _ = self.packed_shape(module)
        zero_point = decode_zeros(module, self.stored(f"{module}.{QZEROS}"), outputs)
        group_size = None if self.group_size == -1 else self.group_size
        return IntegerScheme(BITS, group_size, symmetric=not bool(zero_point.any()))

    def tensor_type(self, name: str) -> str:
        return super().tensor_type(name) if self.packed_module(name) is None else "awq gemm"


def _read_section(source: Path) -> tuple[Mapping[str, Any], str]:
    section = read_json(source / CONFIG_NAME).get("quantization_config")
    if section is not None:
        return section, f"{source / CONFIG_NAME}: quantization_config"
    return read_json(source / QUANT_CONFIG_NAME), str(source / QUANT_CONFIG_NAME)


def _parse(section: Mapping[str, Any], where: str) -> int:
    """The group size, -1 for all inputs; everything else that would change the numbers is refused."""
    bits = section.get("bits", section.get("w_bit"))
    _require(bits == BITS, where, "bits", bits, "AWQ's GEMM format has 4 bits")
    version = section.get("version", section.get("format", "gemm"))
    _require(
        str(version).lower() == "gemm", where, "version", version, "only gemm is read; its order is the portable one"
    )
    zero_point = section.get("zero_point", True)
    _require(zero_point is True, where, "zero_point", zero_point, "only with zero points")
    group_size = section.get("group_size", section.get("q_group_size", 128))
    _require(group_size in (-1, *GROUP_SIZES), where, "group_size", group_size, f"-1 and {GROUP_SIZES} are read")
    assert isinstance(group_size, int)
    return group_size


def _require(condition: bool, where: str, key: str, value: Any, expected: str) -> None:
    if not condition:
        raise CheckpointError(f"{where}.{key}: got {value!r}; {expected}")
