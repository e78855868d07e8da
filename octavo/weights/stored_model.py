"""What every writer of a format is given: a whole model under Hugging Face names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from octavo.numerics.activations import InputQuantizer
from octavo.numerics.kv_scales import KvScales
from octavo.numerics.quantized_tensor import QuantizedTensor

if TYPE_CHECKING:
    from octavo.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class StoredModel:
    """`tensors` by name, dense or quantized (`<module>.weight`); each is asked for once, so they may load lazily.
    A tied model has no `lm_head.weight`. `config` is the Hugging Face config without `quantization_config`.

    `inputs`: how modules round their inputs, by module name. `kv_scales` by the attention module's name
    (`model.layers.0.self_attn`). `extra_files` (generation_config.json, ...) are written as they are.
    """

    tensors: Mapping[str, Tensor | QuantizedTensor]
    config: Mapping[str, Any]
    tokenizer: Tokenizer | None = None
    inputs: Mapping[str, InputQuantizer] = field(default_factory=dict)
    kv_scales: Mapping[str, KvScales] = field(default_factory=dict)
    extra_files: Mapping[str, bytes] = field(default_factory=dict)


class LazyTensors(Mapping[str, Tensor | QuantizedTensor]):
    """Tensors of these names, each read when it is asked for."""

    def __init__(self, names: Iterable[str], read: Callable[[str], Tensor | QuantizedTensor]) -> None:
        self._names, self._read = dict.fromkeys(names), read

    def __getitem__(self, name: str) -> Tensor | QuantizedTensor:
        return self._read(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
