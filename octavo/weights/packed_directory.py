"""A Hugging Face directory whose packed modules are several tensors each, seen as one `<module>.weight`."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path

from torch import Tensor

from octavo.core.errors import CheckpointError
from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.weights.safetensors_directory import SafetensorsDirectory

WEIGHT = "weight"


class PackedDirectory(SafetensorsDirectory):
    """`marker` is the local name of the tensor that makes a module a packed one, `required` and `optional` those of
    its parts, which have no names of their own here. Raises `CheckpointError` for a module that lacks a part."""

    def __init__(self, source: Path, marker: str, required: frozenset[str], optional: frozenset[str]) -> None:
        super().__init__(source)
        self._parts: dict[str, list[str]] = {}
        stored = super().names()
        for name in stored:
            module, _, last = name.rpartition(".")
            if last == marker and self.is_packed(module):
                self._parts[module] = [part for part in sorted(required | optional) if f"{module}.{part}" in stored]
                for part in sorted(required - set(self._parts[module])):
                    raise CheckpointError(f"{source}: tensor {module}.{part} is missing; {module}.{marker} needs it")
        if not self._parts:
            reason = f"the config names a quantization, but no module has a tensor {marker}"
            raise CheckpointError(f"{source}: {reason}; remove quantization_config if the weights are dense")
        for name in stored:
            module, _, last = name.rpartition(".")
            if module not in self._parts and last in (required | optional) - {WEIGHT}:
                raise CheckpointError(f"{source}: tensor {name} belongs to a packed module, but {marker} is missing")

    def is_packed(self, module: str) -> bool:
        """Whether a module that has the marker is packed."""
        return True

    @abstractmethod
    def decode(self, module: str) -> Tensor | QuantizedTensor:
        """The module's weight `[outputs, inputs]`."""

    @abstractmethod
    def packed_shape(self, module: str) -> tuple[int, int]:
        """`[outputs, inputs]` from headers."""

    @property
    def modules(self) -> list[str]:
        """Names of the packed modules, sorted."""
        return sorted(self._parts)

    def names(self) -> list[str]:
        hidden = {f"{module}.{part}" for module, parts in self._parts.items() for part in parts}
        return sorted((set(super().names()) - hidden) | {f"{module}.{WEIGHT}" for module in self._parts})

    def get(self, name: str) -> Tensor | QuantizedTensor:
        module = self.packed_module(name)
        return self.stored(name) if module is None else self.decode(module)

    def shape(self, name: str) -> tuple[int, ...]:
        module = self.packed_module(name)
        return self.stored_shape(name) if module is None else self.packed_shape(module)

    def tensor_bytes(self, name: str) -> int:
        module = self.packed_module(name)
        if module is None:
            return self.stored_bytes(name)
        return sum(self.stored_bytes(f"{module}.{part}") for part in self._parts[module])

    def packed_module(self, name: str) -> str | None:
        """The packed module whose weight is called `name`."""
        module, _, last = name.rpartition(".")
        return module if last == WEIGHT and module in self._parts else None

    def stored_parts(self, module: str) -> dict[str, Tensor]:
        """A packed module's tensors by their local names."""
        return {part: self.stored(f"{module}.{part}") for part in self._parts[module]}
