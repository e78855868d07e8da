"""Checkpoints: a uniform, lazy view of a stored model, and how one is opened."""

from __future__ import annotations

import importlib
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
    from octavo.numerics.scheme import Scheme
    from octavo.text.tokenizer import Tokenizer

#: Files that can run code when they are read.
PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"})
CONFIG_NAME = "config.json"
#: `quant_method` -> the class that reads such a directory.
DIRECTORIES = {
    "compressed-tensors": "octavo.weights.compressed_tensors_directory.CompressedTensorsDirectory",
    "gptq": "octavo.weights.gptq_directory.GptqDirectory",
    "awq": "octavo.weights.awq_directory.AwqDirectory",
    "bitnet": "octavo.weights.bitnet_directory.BitNetDirectory",
    "fp8": "octavo.weights.fp8_directory.Fp8Directory",
}


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

    @property
    def notes(self) -> tuple[str, ...]:
        """Where the files contradict their labels, or are read as something else than they are. May read tensors."""
        return ()

    def tensor_type(self, name: str) -> str:
        """The format's own name of how a tensor is stored, such as `BF16`, `Q4_K` or `pack-quantized`."""
        return "unknown"

    def scheme(self, name: str) -> Scheme | None:
        """The grid of a quantized `<module>.weight`, without reading its codes; None: `get` gives a dense tensor."""
        return None

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

    return _open_safetensors(path)


def _open_safetensors(path: Path) -> Checkpoint:
    """By the quantization method that the config names, or that a file of older checkpoints tells of."""
    from octavo.weights.safetensors_directory import SafetensorsDirectory, read_json

    section = read_json(path / CONFIG_NAME).get("quantization_config") or {}
    method = section.get("quant_method") if section else _method_of_side_file(path)
    if method is None and not section:
        return SafetensorsDirectory(path)
    if method not in DIRECTORIES:
        raise CheckpointError(
            f"{path / CONFIG_NAME}: quantization_config.quant_method is {method!r}, which is not read; these are: "
            f"{', '.join(DIRECTORIES)}, and unquantized models"
        )
    module, _, name = DIRECTORIES[str(method)].rpartition(".")
    directory: Checkpoint = getattr(importlib.import_module(module), name)(path)
    return directory


def _method_of_side_file(path: Path) -> str | None:
    if (path / "quantize_config.json").is_file():
        return "gptq"
    return "awq" if (path / "quant_config.json").is_file() else None


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
