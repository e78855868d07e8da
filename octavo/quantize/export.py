"""From quantized matrices to a checkpoint on disk that another reader has confirmed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from octavo.core.errors import CheckpointError
from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.weights.companion_files import read_companion_files
from octavo.weights.compressed_tensors_verification import Verification, verify_with_compressed_tensors
from octavo.weights.compressed_tensors_writer import WrittenCheckpoint, write_compressed_tensors

if TYPE_CHECKING:
    from octavo.models.spec import ModelSpec
    from octavo.text.tokenizer import Tokenizer
    from octavo.weights.checkpoint import Checkpoint


def export(
    directory: Path,
    quantized: Mapping[str, Tensor | QuantizedTensor],
    checkpoint: Checkpoint,
    spec: ModelSpec,
    tokenizer: Tokenizer,
) -> tuple[WrittenCheckpoint, Verification]:
    """Write `directory` in compressed-tensors' format and have the compressed-tensors package decode every module.

    Everything that is not in `quantized` is copied as the source has it. Raises `CheckpointError` if the other
    reader gets different numbers.
    """
    config = {name: value for name, value in checkpoint.config.items() if name != "quantization_config"}
    config["tie_word_embeddings"] = spec.tied_embedding
    companions = read_companion_files(checkpoint.source)
    written = write_compressed_tensors(
        directory, _Tensors(quantized, checkpoint, spec), config, tokenizer, extra_files=companions
    )
    verification = verify_with_compressed_tensors(directory)
    if verification.verified is False:
        raise CheckpointError(f"{directory}: the written file does not read back as meant: {verification.verdict}")
    return written, verification


class _Tensors(Mapping[str, Tensor | QuantizedTensor]):
    """All tensors of the output, read from the source only when asked for."""

    def __init__(
        self, quantized: Mapping[str, Tensor | QuantizedTensor], checkpoint: Checkpoint, spec: ModelSpec
    ) -> None:
        self._quantized = quantized
        self._checkpoint = checkpoint
        tied_head = {f"{spec.names.head}.weight"} if spec.tied_embedding else set()
        self._names = [name for name in {**dict.fromkeys(checkpoint.names()), **quantized} if name not in tied_head]

    def __getitem__(self, name: str) -> Tensor | QuantizedTensor:
        return self._quantized[name] if name in self._quantized else self._checkpoint.get(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
