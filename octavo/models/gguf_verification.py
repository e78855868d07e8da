"""A second opinion on a GGUF file: the gguf package reads it, and its numbers are compared with the source's.

The package has a header parser and dequantizers of its own; names and the order of rows are translated back by
`GgufCheckpoint`, which never sees what the writer did.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from octavo.models.gguf import GgufCheckpoint
from octavo.models.spec import ModelSpec
from octavo.models.stacked_experts import StackedExperts, has_stacked_experts
from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.weights.checkpoint import Checkpoint
from octavo.weights.compressed_tensors_verification import Verification
from octavo.weights.gguf_file import GgufFile
from octavo.weights.stored_model import StoredModel

#: A rounding that leaves more than this share of a matrix is none: rows or blocks are in the wrong place.
_MOST_ERROR = 0.7


def verify_gguf(file: Path, spec: ModelSpec, model: StoredModel, exact: bool = False) -> Verification:
    """Compare header and numbers of `file` with the gguf package's reading and with `model`'s tensors.

    Verified means: both readers see the same tensors at the same places, and each one is the source's, exactly or up
    to a rounding (root mean square error over that of the matrix), which `exact` rules out. `max_difference` is the
    largest such error. Takes seconds, most of them for the package's reading of a large vocabulary.
    """
    stored = GgufFile(file)
    if (reason := _header_difference(stored, file)) is not None:
        return Verification(False, f"the gguf package reads another file than Octavo: {reason}")
    checkpoint: Checkpoint = GgufCheckpoint(stored)
    if has_stacked_experts(checkpoint):
        checkpoint = StackedExperts(checkpoint, spec)
    num_exact, worst_name, worst_error = 0, None, 0.0
    names = sorted(name for name in model.tensors if name in checkpoint.names())
    for name in names:
        error = _relative_error(checkpoint.get(name), model.tensors[name])
        num_exact += error == 0
        if not error <= worst_error:
            worst_name, worst_error = name, error
    verified = worst_error <= (0.0 if exact else _MOST_ERROR) and len(names) == len(checkpoint.names())
    rounded = "" if worst_name is None else f"; the largest error is {worst_error:.2%}, in {worst_name}"
    verdict = f"gguf reads {len(names)} tensors, {num_exact} of them exactly the source's{rounded}"
    return Verification(verified, verdict, len(names), worst_error, worst_name)


def _header_difference(stored: GgufFile, file: Path) -> str | None:
    """What the package's reader sees in another way: metadata, names, shapes, types, places."""
    import gguf

    reader = gguf.GGUFReader(file)
    theirs = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    for key in sorted(theirs.keys() | stored.metadata.keys()):
        if theirs.get(key) != stored.metadata.get(key):
            return f"metadata {key}"
    seen = {
        str(tensor.name): (tuple(int(size) for size in reversed(tensor.shape)), tensor.tensor_type.name, tensor.n_bytes)
        for tensor in reader.tensors
    }
    for name in sorted(seen.keys() | set(stored.names())):
        if name not in seen or name not in stored.names():
            return f"tensor {name}"
        if seen[name] != (stored.shape(name), stored.tensor_type(name), stored.tensor_bytes(name)):
            return f"tensor {name} is {seen[name]}"
    return None


def _relative_error(found: Tensor | QuantizedTensor, source: Tensor | QuantizedTensor) -> float:
    """0 where they are equal; norms within a float32 rounding of 1 + w count as equal."""
    ours, exact = (each.dequantize() if isinstance(each, QuantizedTensor) else each for each in (found, source))
    difference = ours.to(torch.float32) - exact.to(torch.float32)
    if not bool((difference.abs() > 1e-6 * (exact.ndim == 1)).any()):
        return 0.0
    return float(difference.norm() / exact.to(torch.float32).norm().clamp_min(1e-30))
