"""Tiny transformers models quantized by plain rounding, as every writer is given them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from octavo.numerics.activations import InputQuantizer
from octavo.numerics.integer import encode
from octavo.numerics.packed_tensor import PackedTensor
from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.numerics.scheme import IntegerScheme
from octavo.text.tokenizer import Tokenizer
from octavo.weights.bitnet_directory import INPUTS
from octavo.weights.bitnet_layout import absmean_ternary
from octavo.weights.companion_files import read_companion_files
from octavo.weights.stored_model import StoredModel
from tests.checkpoints import make_tiny, make_tiny_model


def stored_tiny(
    family: str,
    folder: Path,
    linear: IntegerScheme,
    special: dict[str, Any] | None = None,
    dense_dtype: torch.dtype = torch.float16,
) -> tuple[StoredModel, Any]:
    """The model, and the transformers one with its dequantized weights. Linears by `linear` (ternary ones with int8
    inputs), names that end in a key of `special` by its value (None: dense), everything else `dense_dtype`."""
    source = make_tiny(family, folder / "source")
    dense = make_tiny_model(family)
    tensors: dict[str, Any] = {}
    inputs: dict[str, InputQuantizer] = {}
    with torch.no_grad():
        for name, weight in dense.state_dict().items():
            module = name.removesuffix(".weight")
            if dense.config.tie_word_embeddings and module == "lm_head":
                continue
            tensors[name] = stored = _stored(module, weight, linear, special or {}, dense_dtype)
            if isinstance(stored, PackedTensor) and stored.scheme.ternary:
                inputs[module] = INPUTS
            weight.copy_(stored.dequantize() if isinstance(stored, QuantizedTensor) else stored)
    config = json.loads((source / "config.json").read_text())
    tokenizer, files = Tokenizer.from_directory(source), read_companion_files(source)
    return StoredModel(tensors, config, tokenizer, inputs, extra_files=files), dense


def _stored(
    module: str, weight: torch.Tensor, linear: IntegerScheme, special: dict[str, Any], dense_dtype: torch.dtype
) -> Any:
    scheme: IntegerScheme | None = linear
    if weight.ndim != 2 or "embed" in module or module == "lm_head":
        scheme = None
    for end, other in special.items():
        if module.endswith(end):
            scheme = other
    if scheme is None:
        return weight.to(dense_dtype)
    if scheme.ternary:
        return absmean_ternary(weight)
    encoded = encode(weight, scheme)
    return PackedTensor.from_codes(encoded.codes, encoded.scale, encoded.zero_point, scheme)


def logits_of(model: Any) -> torch.Tensor:
    """Of two short prompts."""
    ids = torch.arange(40).reshape(2, 20) * 7 % model.config.vocab_size
    with torch.no_grad():
        logits: torch.Tensor = model(ids).logits
    return logits
