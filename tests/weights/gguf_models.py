"""Stored models for the tests of GGUF export: a checkpoint's tensors in memory, some of them quantized."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from octavo.models.load import open_model_checkpoint
from octavo.models.registry import read_spec
from octavo.models.spec import ModelSpec
from octavo.numerics.integer import encode
from octavo.numerics.packed_tensor import PackedTensor
from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.numerics.scheme import IntegerScheme
from octavo.weights.stored_model import StoredModel

Tensors = dict[str, Tensor | QuantizedTensor]


def stored_model(source: Path | str) -> tuple[ModelSpec, StoredModel]:
    """Everything a directory or GGUF file holds, as a writer is given it."""
    checkpoint = open_model_checkpoint(source)
    spec = read_spec(checkpoint.config)
    tied_head = {"lm_head.weight"} if spec.tied_embedding else set()
    tensors = {name: checkpoint.get(name) for name in checkpoint.names() if name not in tied_head}
    config = {**checkpoint.config, "tie_word_embeddings": spec.tied_embedding}
    return spec, StoredModel(tensors, config, checkpoint.tokenizer())


def packed(matrix: Tensor, scheme: IntegerScheme, scale_dtype: torch.dtype = torch.float16) -> PackedTensor:
    """`matrix` rounded to the nearest codes of `scheme`."""
    encoded = encode(matrix, scheme, scale_dtype=scale_dtype, search=False)
    return PackedTensor.from_codes(encoded.codes, encoded.scale, encoded.zero_point, scheme)
