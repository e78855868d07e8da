"""A Hugging Face directory quantized in compressed-tensors' format: packed modules become quantized matrices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from octavo.core.errors import CheckpointError
from octavo.numerics.activations import InputQuantizer
from octavo.numerics.kv_scales import KvScales
from octavo.numerics.packed_tensor import PackedTensor
from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.numerics.scheme import IntegerScheme, Scheme
from octavo.weights.checkpoint import CONFIG_NAME
from octavo.weights.compressed_tensors_args import ModuleFormat
from octavo.weights.compressed_tensors_config import (
    HEAD_MODULE,
    ModuleClass,
    module_class,
    parse_quantization_config,
)
from octavo.weights.compressed_tensors_float_layout import GLOBAL_SCALE, PACKED, SCALE, WEIGHT
from octavo.weights.compressed_tensors_kv import K_SCALE, V_SCALE, decode_kv
from octavo.weights.compressed_tensors_layout import (
    INPUT_GLOBAL_SCALE,
    INPUT_SCALE,
    SHAPE,
    ZERO_POINT,
    decode_inputs,
    decode_module,
    required_parts,
)
from octavo.weights.safetensors_directory import SafetensorsDirectory

_PARTS = frozenset({PACKED, SCALE, SHAPE, ZERO_POINT, GLOBAL_SCALE, INPUT_SCALE, INPUT_GLOBAL_SCALE})
_KV_PARTS = frozenset({K_SCALE, V_SCALE})
#: safetensors dtypes of codes; a `weight` of such a dtype belongs to a packed module.
_CODE_DTYPES = frozenset({"I8", "F8_E4M3"})
#: How the format declares ternary matrices too.
_TWO_BIT_ROWS = IntegerScheme(2)
#: Tensors that would change what a module computes and are not read.
_FOREIGN_PARTS = frozenset({
    "weight_g_idx", "input_zero_point", "output_scale", "output_zero_point", "k_zero_point", "v_zero_point", "q_scale",
    "bitmask", "shape", "compressed", "row_offsets",
})  # fmt: skip


class CompressedTensorsDirectory(SafetensorsDirectory):
    """`names()` has each packed module once, under `<module>.weight`; its parts have no names of their own."""

    def __init__(self, source: Path) -> None:
        super().__init__(source)
        where = f"{source / CONFIG_NAME}: quantization_config"
        self.quantization = parse_quantization_config(self.config["quantization_config"], where)
        self._kv_parts: dict[str, set[str]] = {}
        self._parts = self._collect_parts()
        self.formats: dict[str, ModuleFormat] = {}
        for module, parts in self._parts.items():
            module_format = self.quantization.format_of(module)
            if module_format is None:
                reason = "but no target names the module, or ignore does"
                raise CheckpointError(f"{source}: tensor {module}.{min(parts)} belongs to a packed module, {reason}")
            self._check_complete(module, parts, module_format)
            self.formats[module] = module_format

    def names(self) -> list[str]:
        hidden = {f"{module}.{part}" for module, parts in self._parts.items() for part in parts}
        hidden |= {self._head_copy(part) for part in (SCALE, ZERO_POINT)}
        hidden |= {f"{attention}.{part}" for attention, parts in self._kv_parts.items() for part in parts}
        dense = set(super().names()) - hidden
        return sorted(dense | {f"{module}.{WEIGHT}" for module in self.formats})

    def get(self, name: str) -> Tensor | QuantizedTensor:
        module = self._packed_module(name)
        if module is None:
            return self.stored(name)
        parts = {part: self.stored(f"{module}.{part}") for part in self._parts[module]}
        return _recognised(decode_module(module, parts, self.formats[module]))

    def shape(self, name: str) -> tuple[int, ...]:
        module = self._packed_module(name)
        if module is None or WEIGHT in self._parts[module]:
            return self.stored_shape(name)
        if SHAPE not in self._parts[module]:  # two FP4 codes a byte
            rows, num_bytes = self.stored_shape(f"{module}.{PACKED}")
            return rows, 2 * num_bytes
        return tuple(self.stored(f"{module}.{SHAPE}").flatten().tolist())

    def tensor_bytes(self, name: str) -> int:
        module = self._packed_module(name)
        if module is None:
            return self.stored_bytes(name)
        total = sum(self.stored_bytes(f"{module}.{part}") for part in self._parts[module])
        if self.shares_head(module):
            total += sum(self.stored_bytes(copy) for copy in self._head_copies())
        return total

    def module_format(self, name: str) -> ModuleFormat | None:
        """Scheme and layout of a packed `<module>.weight`, None for a dense tensor."""
        module = self._packed_module(name)
        return None if module is None else self.formats[module]

    def tensor_type(self, name: str) -> str:
        module_format = self.module_format(name)
        return self.stored_dtype(name) if module_format is None else module_format.layout.value

    def scheme(self, name: str) -> Scheme | None:
        module_format = self.module_format(name)
        if module_format is None:
            return None
        if module_format.scheme == _TWO_BIT_ROWS:  # what these are, only their codes tell
            tensor = self.get(name)
            return tensor.scheme if isinstance(tensor, PackedTensor) else module_format.scheme
        return module_format.scheme

    def input_quantizer(self, module: str) -> InputQuantizer | None:
        module_format = self.formats.get(module)
        if module_format is None or module_format.inputs is None:
            return None
        parts = self._parts[module] & {INPUT_SCALE, INPUT_GLOBAL_SCALE}
        return decode_inputs(module, {part: self.stored(f"{module}.{part}") for part in parts}, module_format.inputs)

    def kv_scales(self, attention: str) -> KvScales | None:
        if self.quantization.kv is None:
            return None
        parts = {part: self.stored(f"{attention}.{part}") for part in self._kv_parts.get(attention, ())}
        return decode_kv(attention, parts, self.quantization.kv, self._num_kv_heads())

    def _num_kv_heads(self) -> int:
        config = self.config.get("text_config") or self.config
        heads = config.get("num_key_value_heads") or config.get("num_attention_heads")
        if not isinstance(heads, int):
            raise CheckpointError(f"{self.source / CONFIG_NAME}: num_key_value_heads: got {heads!r}; not a number")
        return heads

    def _packed_module(self, name: str) -> str | None:
        module, _, last = name.rpartition(".")
        return module if last == WEIGHT and module in self.formats else None

    def _collect_parts(self) -> dict[str, set[str]]:
        """Packed modules and the local names they have; refuses tensors whose effect is not understood."""
        copies = set(self._head_copies())
        parts: dict[str, set[str]] = {}
        for name in super().names():
            module, _, last = name.rpartition(".")
            if last in _FOREIGN_PARTS:
                raise CheckpointError(f"{self._file(name)}: tensor {name} is a quantization parameter that is not read")
            if last in _PARTS and name not in copies:
                parts.setdefault(module, set()).add(last)
            elif last == WEIGHT and self.stored_dtype(name) in _CODE_DTYPES:
                parts.setdefault(module, set()).add(WEIGHT)
            elif last in _KV_PARTS:
                if self.quantization.kv is None:
                    raise CheckpointError(f"{self._file(name)}: tensor {name} has no kv_cache_scheme that explains it")
                self._kv_parts.setdefault(module, set()).add(last)
        for module, found in parts.items():
            if f"{module}.{WEIGHT}" in self._file_of:
                found.add(WEIGHT)
        return parts

    def _check_complete(self, module: str, parts: set[str], module_format: ModuleFormat) -> None:
        required = set(required_parts(module_format))
        for part in sorted(required - parts):
            raise CheckpointError(
                f"{self.source}: tensor {module}.{part} is missing; its {module_format.scheme} needs it"
            )
        for part in sorted(parts - required):
            layout = f"{module_format.layout} {module_format.scheme}"
            raise CheckpointError(f"{self.source}: tensor {module}.{part} has no place in {layout}")
        if self.shares_head(module):
            self._check_head_copies(module)

    def _head_copies(self) -> list[str]:
        """Scales and zero points stored again for a head whose int8 codes are the embedding's own: a tied
        `lm_head` has no codes, but transformers wants its parameters (see `compressed_tensors_writer`)."""
        tied = self.config.get("tie_word_embeddings") and f"{HEAD_MODULE}.{WEIGHT}" not in self._file_of
        copies = (self._head_copy(part) for part in (SCALE, ZERO_POINT))
        return [
            copy for copy in copies if tied and f"{HEAD_MODULE}.{PACKED}" not in self._file_of and copy in self._file_of
        ]

    @staticmethod
    def _head_copy(part: str) -> str:
        return f"{HEAD_MODULE}.{part}"

    def parts(self, module: str) -> set[str]:
        """Local names of a packed module's stored tensors."""
        return self._parts[module]

    def shares_head(self, module: str) -> bool:
        """Whether a tied head with scales of its own is decoded from this module's codes."""
        return bool(self._head_copies()) and module_class(module) is ModuleClass.EMBEDDING

    def _check_head_copies(self, module: str) -> None:
        for copy in self._head_copies():
            own = f"{module}.{copy.rpartition('.')[2]}"
            if own not in self._file_of or not torch.equal(self.stored(copy), self.stored(own)):
                raise CheckpointError(f"{self.source}: tensor {copy} differs from {own}, though the head is tied to it")


def _recognised(tensor: Tensor | QuantizedTensor) -> Tensor | QuantizedTensor:
    """Two-bit codes that are all -1, 0 or 1 with one scale for the whole matrix are ternary: the same numbers, which
    BitNet can hold too."""
    if not isinstance(tensor, PackedTensor) or tensor.scheme != _TWO_BIT_ROWS:
        return tensor
    has_one_scale = bool((tensor.scale == tensor.scale.flatten()[0]).all())
    if not has_one_scale or int(tensor.codes().min()) < -1:
        return tensor
    return replace(tensor, scheme=IntegerScheme(2, None, True, ternary=True))
