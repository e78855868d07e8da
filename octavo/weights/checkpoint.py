"""Checkpoints: a uniform, lazy view of a stored model, and how one is opened."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.core.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

    from octavo.numerics.activations import InputQuantizer
    from octavo.numerics.kv_scales import KvScales
    from octavo.numerics.quantized_tensor import QuantizedTensor
    from octavo.text.tokenizer import Tokenizer

#: Files that can run code when they are read.
PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"})
CONFIG_NAME = "config.json"


class Checkpoint(ABC):
    """A stored model. Opening reads headers only; `get` reads one tensor.

    `source` is the directory or file, `config` its Hugging Face config (empty for a bare `GgufFile`:
    `octavo.models` makes one from the metadata). Everything raises `CheckpointError` naming the file or tensor.
    """

    source: Path
    config: dict[str, Any]

    @abstractmethod
    def names(self) -> list[str]:
        """Tensor names, sorted. A packed module stands once, under `<module>.weight`."""

    @abstractmethod
    def get(self, name: str) -> Tensor | QuantizedTensor:
        """One tensor in its stored dtype (block-quantized GGUF types: float32), or a packed matrix."""

    def get_matrix(self, name: str, index: int) -> Tensor:
        """Matrix `index` of a stack `[matrices, outputs, inputs]`, without reading the others where that can be."""
        from octavo.numerics.quantized_tensor import QuantizedTensor

        stack = self.get(name)
        if isinstance(stack, QuantizedTensor):
            raise CheckpointError(f"{self.source}: {name} is packed; only single matrices may be")
        return stack[index]

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]:
        """Logical shape `[outputs, inputs]`, without reading the tensor."""

    @abstractmethod
    def tensor_bytes(self, name: str) -> int:
        """Stored bytes of one tensor, scales and zero points included."""

    def tensor_type(self, name: str) -> str:
        """The format's own name of how a dense tensor is stored, such as `BF16` or `Q4_K`."""
        return "unknown"

    def input_quantizer(self, module: str) -> InputQuantizer | None:
        """How `module` rounds its inputs before the product; None: not at all."""
        return None

    def kv_scales(self, attention: str) -> KvScales | None:
        """Calibrated scales of the keys and values of the attention module of this name; None: the file has none."""
        return None

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Bytes of all weight files, headers included."""

    @abstractmethod
    def tokenizer(self) -> Tokenizer:
        """The tokenizer stored with the weights."""

    def close(self) -> None:
        """Give up file mappings. Tensors already handed out stay valid."""
        return

    def __contains__(self, name: object) -> bool:
        return name in self.names()


def open_checkpoint(path: Path | str) -> Checkpoint:
    """Open a directory (config.json beside *.safetensors, or one .gguf) or a .gguf file.

    Raises `CheckpointError` for pickles, missing or damaged files and quantization formats that are not read.
    """
    path = Path(path)
    if not path.exists():
        raise CheckpointError(f"{path}: no such file or directory")
    if path.is_dir():
        return _open_directory(path)
    if path.suffix == ".gguf":
        from octavo.weights.gguf_file import GgufFile

        return GgufFile(path)
    if path.suffix in PICKLE_SUFFIXES:
        raise CheckpointError(_pickle_refusal(path))
    if path.suffix == ".safetensors":
        raise CheckpointError(f"{path}: name the directory that holds it and its {CONFIG_NAME}")
    raise CheckpointError(f"{path}: not a model; octavo reads a directory with safetensors or a .gguf file")


def _open_directory(path: Path) -> Checkpoint:
    gguf_files = sorted(path.glob("*.gguf"))
    if not any(path.glob("*.safetensors")) and not any(path.glob("*.safetensors.index.json")):
        if len(gguf_files) == 1:
            from octavo.weights.gguf_file import GgufFile

            return GgufFile(gguf_files[0])
        if gguf_files:
            choice = ", ".join(file.name for file in gguf_files)
            raise CheckpointError(f"{path}: holds several GGUF models, name one of them: {choice}")
        pickles = sorted(file for file in path.iterdir() if file.suffix in PICKLE_SUFFIXES)
        if pickles:
            raise CheckpointError(_pickle_refusal(pickles[0]))
        raise CheckpointError(f"{path}: holds no *.safetensors and no *.gguf")

    from octavo.weights.safetensors_directory import SafetensorsDirectory, read_json

    method = (read_json(path / CONFIG_NAME).get("quantization_config") or {}).get("quant_method")
    if method is None:
        return SafetensorsDirectory(path)
    if method == "compressed-tensors":
        from octavo.weights.compressed_tensors_directory import CompressedTensorsDirectory

        return CompressedTensorsDirectory(path)
    raise CheckpointError(
        f"{path / CONFIG_NAME}: quantization_config.quant_method is {method!r}, which is not read yet; "
        "compressed-tensors is, and so is an unquantized model"
    )


def _pickle_refusal(file: Path) -> str:
    return (
        f"{file}: {file.suffix} files are Python pickles, and reading one can run any code in it; "
        "use the model's safetensors or GGUF file"
    )


def num_weights(checkpoint: Checkpoint) -> int:
    """Parameters of a stored model; a head that is tied but stored again counts once."""
    names = checkpoint.names()
    if checkpoint.config.get("tie_word_embeddings") and len(names) > 1:
        names = [name for name in names if name != "lm_head.weight"]
    return sum(math.prod(checkpoint.shape(name)) for name in names)


def true_bits_per_weight(checkpoint: Checkpoint) -> float:
    """Bits of all weight files (scales, zero points, headers, embeddings, norms) over the number of parameters."""
    return checkpoint.num_bytes * 8 / num_weights(checkpoint)
