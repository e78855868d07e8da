"""What the bytes of a model's files are: codes, their scales, the embedding, norms."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from octavo.core.errors import UnsupportedModel
from octavo.models.registry import read_spec
from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.weights.checkpoint import Checkpoint

#: Bits of a code in ggml's block types; the rest of a block are its scales.
_GGML_CODE_BITS = re.compile(r"^(?:I?Q|TQ)(\d)_|^MXFP(\d)$|^NVFP(\d)$")

CODES, SCALES = "codes", "scales and zero points"
EMBEDDING_CODES, EMBEDDING_SCALES = "embedding and head: codes", "embedding and head: scales"
DENSE, EMBEDDING, VECTORS = "dense matrices", "embedding and head", "norms, biases and scales of inputs"
OTHER = "headers and padding"


def size_parts(checkpoint: Checkpoint) -> dict[str, int]:
    """Bytes by part, none of them zero; the sum is all weight files. Quantized matrices are read."""
    parts: dict[str, int] = {}
    for name in checkpoint.names():
        for part, num_bytes in _tensor_parts(checkpoint, name):
            parts[part] = parts.get(part, 0) + num_bytes
    parts[OTHER] = checkpoint.num_bytes - sum(parts.values())
    order = (CODES, SCALES, DENSE, EMBEDDING_CODES, EMBEDDING_SCALES, EMBEDDING, VECTORS, OTHER)
    return {part: parts[part] for part in order if parts.get(part)}


def _tensor_parts(checkpoint: Checkpoint, name: str) -> Iterator[tuple[str, int]]:
    stored, shape = checkpoint.tensor_bytes(name), checkpoint.shape(name)
    if len(shape) < 2:
        yield VECTORS, stored
        return
    is_embedding = name in _embeddings(checkpoint)
    bits = _code_bits(checkpoint, name)
    if bits is None:
        yield (EMBEDDING if is_embedding else DENSE), stored
        return
    codes = math.prod(shape) * bits // 8
    yield (EMBEDDING_CODES if is_embedding else CODES), codes
    yield (EMBEDDING_SCALES if is_embedding else SCALES), stored - codes


def _code_bits(checkpoint: Checkpoint, name: str) -> int | None:
    """None for a dense matrix."""
    if checkpoint.config.get("quantization_config"):
        tensor = checkpoint.get(name)
        return tensor.scheme.bits if isinstance(tensor, QuantizedTensor) else None
    match = _GGML_CODE_BITS.match(checkpoint.tensor_type(name))
    return int(next(filter(None, match.groups()))) if match else None


def _embeddings(checkpoint: Checkpoint) -> set[str]:
    try:
        names = read_spec(checkpoint.config).names
    except UnsupportedModel:
        return {"model.embed_tokens.weight", "lm_head.weight"}
    return {f"{names.embedding}.weight", f"{names.head}.weight"}
