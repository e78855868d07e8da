"""From quantized matrices to a checkpoint on disk that another reader has confirmed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from octavo.core.errors import CheckpointError
from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.weights.companion_files import read_companion_files
from octavo.weights.compressed_tensors_verification import Verification, verify_with_compressed_tensors
from octavo.weights.compressed_tensors_writer import write_compressed_tensors
from octavo.weights.model_directory import WrittenCheckpoint
from octavo.weights.stored_model import LazyTensors, StoredModel

if TYPE_CHECKING:
    from octavo.models.spec import ModelSpec
    from octavo.quantize.pipeline import QuantizedModel
    from octavo.text.tokenizer import Tokenizer
    from octavo.weights.checkpoint import Checkpoint


def export(directory: Path, model: StoredModel) -> tuple[WrittenCheckpoint, Verification]:
    """Write `directory` in compressed-tensors' format and have the compressed-tensors package decode every module.

    Raises `CheckpointError` if the other reader gets different numbers.
    """
    written = write_compressed_tensors(directory, model)
    verification = verify_with_compressed_tensors(directory)
    if verification.verified is False:
        raise CheckpointError(f"{directory}: the written file does not read back as meant: {verification.verdict}")
    return written, verification


def stored_model(
    quantized: QuantizedModel, checkpoint: Checkpoint, spec: ModelSpec, tokenizer: Tokenizer
) -> StoredModel:
    """What a writer of any format is given: `quantized`, and the rest as `checkpoint` has it. `spec` is the quantized
    model's: a rotation unties its head."""
    config = {name: value for name, value in checkpoint.config.items() if name != "quantization_config"}
    config["tie_word_embeddings"] = spec.tied_embedding
    attention_of = {layer: spec.names.in_layer(layer, spec.names.q).rpartition(".")[0] for layer in quantized.kv_scales}
    tied_head = f"{spec.names.head}.weight" if spec.tied_embedding else None
    names = [name for name in [*checkpoint.names(), *quantized.tensors] if name != tied_head]

    def read(name: str) -> Tensor | QuantizedTensor:
        return quantized.tensors[name] if name in quantized.tensors else checkpoint.get(name)

    return StoredModel(
        tensors=LazyTensors(names, read),
        config=config,
        tokenizer=tokenizer,
        inputs=quantized.inputs,
        kv_scales={attention_of[layer]: scales for layer, scales in quantized.kv_scales.items()},
        extra_files=read_companion_files(checkpoint.source),
    )
