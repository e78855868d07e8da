"""A model as it is stored, as the writers of other formats are given it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from octavo.core.errors import CheckpointError
from octavo.models.spec import ModelSpec
from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.numerics.scheme import LinearScheme
from octavo.weights.checkpoint import Checkpoint
from octavo.weights.companion_files import read_companion_files
from octavo.weights.dense_writer import as_dense
from octavo.weights.stored_model import LazyTensors, StoredModel


def linear_schemes(checkpoint: Checkpoint) -> dict[str, LinearScheme]:
    """Module -> what its weights and inputs are rounded to, for quantized matrices."""
    schemes = {}
    for name in checkpoint.names():
        scheme = checkpoint.scheme(name)
        if scheme is not None:
            module = name.removesuffix(".weight")
            quantizer = checkpoint.input_quantizer(module)
            schemes[module] = LinearScheme(scheme, None if quantizer is None else quantizer.scheme)
    return schemes


def matrix_shape(checkpoint: Checkpoint, module: str) -> tuple[int, int]:
    outputs, inputs = checkpoint.shape(f"{module}.weight")
    return outputs, inputs


def stored_checkpoint(checkpoint: Checkpoint, spec: ModelSpec, dense: Mapping[str, torch.dtype]) -> StoredModel:
    """`checkpoint` with the modules in `dense` dequantized to that dtype. Tensors are read when asked for.

    Raises `CheckpointError` if a head that is tied to the embedding is stored again and differs from it.
    """
    config = {key: value for key, value in checkpoint.config.items() if key != "quantization_config"}
    config["tie_word_embeddings"] = spec.tied_embedding
    names = [name for name in checkpoint.names() if name != f"{spec.names.head}.weight" or not spec.tied_embedding]
    if spec.tied_embedding:
        _check_tied_head(checkpoint, f"{spec.names.head}.weight", f"{spec.names.embedding}.weight")
    modules = [name.removesuffix(".weight") for name in names if name.endswith(".weight")]
    inputs = {module: checkpoint.input_quantizer(module) for module in modules if module not in dense}
    attentions = [spec.names.in_layer(layer, spec.names.q).rpartition(".")[0] for layer in range(spec.num_layers)]
    scales = {attention: checkpoint.kv_scales(attention) for attention in attentions}

    def read(name: str) -> Tensor | QuantizedTensor:
        tensor, dtype = checkpoint.get(name), dense.get(name.removesuffix(".weight"))
        return tensor if dtype is None else as_dense(name, tensor, dtype)

    return StoredModel(
        LazyTensors(names, read),
        config,
        checkpoint.tokenizer(),
        {module: quantizer for module, quantizer in inputs.items() if quantizer is not None},
        {attention: kv for attention, kv in scales.items() if kv is not None},
        read_companion_files(checkpoint.source),
    )


def _numbers(checkpoint: Checkpoint, name: str) -> Tensor:
    tensor = checkpoint.get(name)
    return tensor.dequantize() if isinstance(tensor, QuantizedTensor) else tensor.to(torch.float32)


def _check_tied_head(checkpoint: Checkpoint, head: str, embedding: str) -> None:
    """A tied head may be stored again, but not differently: which of the two is meant cannot be known."""
    if head not in checkpoint.names():
        return
    one, other = (_numbers(checkpoint, name) for name in (head, embedding))
    if not torch.equal(one, other):
        raise CheckpointError(f"{checkpoint.source}: tie_word_embeddings is true, but {head} differs from {embedding}")
