"""Whether a checkpoint's numbers are sane, and whether its parts fit each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from octavo.core.errors import CheckpointError, InvalidField
from octavo.numerics.float_tensor import FloatTensor
from octavo.numerics.packed_tensor import PackedTensor
from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.weights.checkpoint import Checkpoint


def find_problems(checkpoint: Checkpoint, progress: Callable[[int, int], None] | None = None) -> list[str]:
    """One line for each tensor with zero or non-finite scales, or NaN or infinity among its values. Reads everything;
    a tensor that cannot be read is a line too. Empty: sane."""
    names = checkpoint.names()
    problems: list[str] = []
    for position, name in enumerate(names, 1):
        try:
            problems += [f"{name}: {problem}" for problem in _problems(checkpoint.get(name))]
        except CheckpointError as error:
            problems.append(str(error))
        if progress is not None:
            progress(position, len(names))
    return problems


def find_head_problems(checkpoint: Checkpoint, head: str, embedding: str, tied: bool) -> list[str]:
    """A tied head that is stored again must be the embedding; an untied one must be there. Names of tensors."""
    stored = head in checkpoint.names()
    if not tied:
        return [] if stored else [f"{head} is missing: the config does not tie it to {embedding}"]
    if not stored:
        return []
    one, other = (_numbers(checkpoint.get(name)) for name in (head, embedding))
    if one.shape == other.shape and torch.equal(one, other):
        return []
    return [f"{head} differs from {embedding}, though the config ties them: engines will disagree on which is meant"]


def find_kv_problems(checkpoint: Checkpoint, attentions: Sequence[str]) -> tuple[list[str], str]:
    """Problems of the KV cache's scales, and what is to be said of them: all layers have scales or none does."""
    problems, found = [], {}
    for attention in attentions:
        try:
            found[attention] = checkpoint.kv_scales(attention)
        except (CheckpointError, InvalidField) as error:
            problems.append(f"{attention}: {error}")
    present = {attention: scales for attention, scales in found.items() if scales is not None}
    if present and len(present) < len(found):
        missing = next(attention for attention in found if attention not in present)
        problems.append(f"{len(found) - len(present)} of {len(attentions)} layers have no KV scales, as {missing}")
    if not present:
        return problems, "none stored"
    unset = [name for name, scales in present.items() if set(scales.keys) | set(scales.values) == {1.0}]
    if unset:
        problems.append(f"{len(unset)} layers have KV scales of exactly 1, as {unset[0]}: not calibrated")
    format = next(iter(present.values())).format
    heads = len(next(iter(present.values())).keys)
    return problems, f"{format}, {len(present)} layers, {heads} {'scale' if heads == 1 else 'scales'} for keys"


def find_split_schemes(checkpoint: Checkpoint, fused: Sequence[Sequence[str]]) -> list[str]:
    """Engines compute q, k, v as one matrix, gate and up too: modules of a group in `fused` need one scheme."""
    warnings = []
    for group in fused:
        schemes = {module: checkpoint.scheme(f"{module}.weight") for module in group}
        if len(set(schemes.values())) > 1:
            shown = ", ".join(f"{module.rpartition('.')[2]} {scheme or 'dense'}" for module, scheme in schemes.items())
            warnings.append(f"{group[0].rpartition('.')[0]}: {shown}; engines that fuse them (vLLM) misread it")
    return warnings


def _problems(tensor: Tensor | QuantizedTensor) -> Iterator[str]:
    if isinstance(tensor, FloatTensor):
        scales = tensor.row_scales()
        yield from _not_finite(scales, "scales")
        yield from _zero_scales(scales)
        if bool(torch.isfinite(scales).all()):
            yield from _not_finite(tensor.dequantize(), "values")
        return
    if not isinstance(tensor, PackedTensor):
        values = tensor.dequantize() if isinstance(tensor, QuantizedTensor) else tensor
        if values.is_floating_point():
            yield from _not_finite(values, "values")
        return
    yield from _not_finite(tensor.scale, "scales")
    yield from _zero_scales(tensor.scale)
    zero_point, scheme = tensor.zero_point, tensor.scheme
    if zero_point is not None and not scheme.lowest <= int(zero_point.min()) <= int(zero_point.max()) <= scheme.highest:
        yield f"zero points outside {scheme.lowest}..{scheme.highest}"


def _not_finite(tensor: Tensor, what: str) -> Iterator[str]:
    wrong = int((~torch.isfinite(tensor)).sum())
    if wrong:
        yield f"{wrong} of {tensor.numel()} {what} are NaN or infinite"


def _zero_scales(scales: Tensor) -> Iterator[str]:
    zeros = int((scales == 0).sum())
    if zeros:
        yield f"{zeros} of {scales.numel()} scales are zero"


def _numbers(tensor: Tensor | QuantizedTensor) -> Tensor:
    return tensor.dequantize() if isinstance(tensor, QuantizedTensor) else tensor.to(torch.float32)
