"""Tiny transformers models quantized by plain rounding and written by the writer under test."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from octavo.numerics.integer import encode
from octavo.numerics.packed_tensor import PackedTensor
from octavo.numerics.scheme import IntegerScheme
from octavo.text.tokenizer import Tokenizer
from octavo.weights.companion_files import read_companion_files
from octavo.weights.compressed_tensors_writer import write_compressed_tensors
from octavo.weights.model_directory import WrittenCheckpoint
from octavo.weights.stored_model import StoredModel
from tests.checkpoints import make_tiny, make_tiny_model


@dataclass
class Quantized:
    """`dense` is the transformers model with the dequantized weights put in: what every reader must compute."""

    source: Path
    directory: Path
    tensors: dict[str, Any]
    config: dict[str, Any]
    dense: Any
    written: WrittenCheckpoint


def pack(weight: torch.Tensor, scheme: IntegerScheme, scale_dtype: torch.dtype = torch.float16) -> PackedTensor:
    encoded = encode(weight, scheme, scale_dtype=scale_dtype, search=False)
    return PackedTensor.from_codes(encoded.codes, encoded.scale, encoded.zero_point, scheme)


def random_packed(rows: int, columns: int, scheme: IntegerScheme, seed: int = 0) -> PackedTensor:
    """Codes over the whole range, scales of both signs, zero points over the whole range."""
    generator = torch.Generator().manual_seed(seed)
    groups = scheme.num_groups(columns)
    low, high = scheme.lowest, scheme.highest + 1
    codes = torch.randint(low, high, (rows, columns), generator=generator, dtype=torch.int8)
    scale = torch.randn(rows, groups, generator=generator).to(torch.float16)
    zero_point = None
    if not scheme.symmetric:
        zero_point = torch.randint(low, high, (rows, groups), generator=generator, dtype=torch.int8)
    return PackedTensor.from_codes(codes, scale, zero_point, scheme)


def quantize_tiny(
    family: str,
    folder: Path,
    linear: IntegerScheme,
    embedding: IntegerScheme | None = None,
    special: dict[str, IntegerScheme] | None = None,
) -> Quantized:
    """Every linear by `linear`, names that end in a key of `special` by its value, the embedding by `embedding`
    (None: dense float16, as the norms and biases; an untied head too)."""
    source = make_tiny(family, folder / "source")
    dense = make_tiny_model(family)
    tied = dense.config.tie_word_embeddings
    tensors: dict[str, Any] = {}
    with torch.no_grad():
        for name, weight in dense.state_dict().items():
            if tied and name == "lm_head.weight":
                continue
            scheme = _scheme(name.removesuffix(".weight"), weight, linear, embedding, special or {})
            tensors[name] = weight.to(torch.float16) if scheme is None else pack(weight, scheme)
            stored = tensors[name]
            weight.copy_(stored.dequantize() if isinstance(stored, PackedTensor) else stored)
    config = json.loads((source / "config.json").read_text())
    directory = folder / "quantized"
    model = StoredModel(tensors, config, Tokenizer.from_directory(source), extra_files=read_companion_files(source))
    written = write_compressed_tensors(directory, model)
    return Quantized(source, directory, tensors, config, dense, written)


def _scheme(module: str, weight: torch.Tensor, linear: Any, embedding: Any, special: dict[str, Any]) -> Any:
    if weight.ndim != 2:
        return None
    for end, scheme in special.items():
        if module.endswith(end):
            return scheme
    if "embed" in module or module == "lm_head":
        return embedding
    return linear
