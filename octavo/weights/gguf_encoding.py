"""Matrices, dense or quantized, as bytes of a ggml type, and notes on what that changed."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from octavo.core.errors import CheckpointError, InvalidField
from octavo.numerics.float_scheme import MXFP4
from octavo.numerics.float_tensor import FloatTensor
from octavo.numerics.ggml import PLAIN_DTYPES, quantize_matrix
from octavo.numerics.packed_tensor import PackedTensor
from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.weights.gguf_carry import carriers, carry

_LAYER = re.compile(r"blk\.(\d+)\.(.*)")


@dataclass(slots=True)
class EncodingNotes:
    """What the user must hear, gathered over all tensors and said once for all that it is true of."""

    _fixed: list[str] = field(default_factory=list)
    _fallbacks: dict[tuple[str, str, int], list[str]] = field(default_factory=lambda: defaultdict(list))
    _rounded: dict[tuple[str, str], list[str]] = field(default_factory=lambda: defaultdict(list))
    _unweighted: list[str] = field(default_factory=list)

    def add(self, note: str) -> None:
        self._fixed.append(note)

    def add_fallback(self, name: str, wanted: str, used: str, columns: int) -> None:
        self._fallbacks[wanted, used, columns].append(name)

    def add_rounded(self, name: str, scheme: str, used: str) -> None:
        self._rounded[scheme, used].append(name)

    def add_unweighted(self, source: str) -> None:
        self._unweighted.append(source)

    def lines(self) -> tuple[str, ...]:
        found = list(self._fixed)
        for (wanted, used, columns), names in self._fallbacks.items():
            found.append(f"{used} instead of {wanted}, rows of {columns} are not whole blocks: {collapse(names)}")
        for (scheme, used), names in self._rounded.items():
            found.append(f"rounded again, {scheme} to {used}: {collapse(names)}")
        if self._unweighted:
            found.append(
                f"no input statistics, or none that are usable, all inputs weigh alike: {collapse(self._unweighted)}"
            )
        return tuple(found)


def collapse(names: Iterable[str]) -> str:
    """Tensor names with runs of layers written as one: `blk.0-3.attn_q.weight`."""
    layers: dict[str, list[int]] = defaultdict(list)
    for name in names:
        match = _LAYER.fullmatch(name)
        layers[match[2] if match else name] += [int(match[1])] if match else []
    return ", ".join(f"blk.{_runs(found)}.{rest}" if found else rest for rest, found in layers.items())


def _runs(numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return "+".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def stored_type(parts: Sequence[Tensor | QuantizedTensor], source: str = "") -> str:
    """The smallest ggml type that holds every one of `parts` as it is. Raises `InvalidField` if there is none."""
    quantized = [part for part in parts if isinstance(part, QuantizedTensor)]
    if not quantized:
        dtypes = {part.dtype for part in parts if isinstance(part, Tensor)}
        names = [name for name, dtype in PLAIN_DTYPES.items() if dtypes == {dtype}]
        return names[0] if names else "F32"
    if len(quantized) < len(parts):
        return "F32"
    for name in carriers(quantized[0]):
        if all(name in carriers(part) for part in quantized[1:]):
            return name
    raise InvalidField(
        "type", None, f"{source} is {quantized[0].scheme}, which no GGUF type holds exactly; "
        "name one, such as Q8_0, to round it again"
    )  # fmt: skip


def encode_matrices(
    name: str,
    sources: Sequence[str],
    parts: Sequence[Tensor | QuantizedTensor],
    type_name: str,
    importance: Sequence[Tensor | None],
    notes: EncodingNotes,
) -> Tensor:
    """Bytes of all `parts`, one after the other: carried over where the type can hold them, else rounded to it."""
    return torch.cat(
        [
            _encode(name, source, part, type_name, weights, notes).reshape(-1)
            for source, part, weights in zip(sources, parts, importance, strict=True)
        ]
    )


def _encode(
    name: str,
    source: str,
    part: Tensor | QuantizedTensor,
    type_name: str,
    importance: Tensor | None,
    notes: EncodingNotes,
) -> Tensor:
    if isinstance(part, QuantizedTensor):
        if type_name in carriers(part):
            return carry(part, type_name)
        if type_name != "F32":
            notes.add_rounded(name, str(part.scheme), type_name)
        part = part.dequantize()
    if importance is not None and not bool((importance.isfinite() & (importance >= 0)).all() and importance.any()):
        notes.add_unweighted(name)
        importance = None
    try:
        return quantize_matrix(part, type_name, importance)
    except InvalidField as error:
        raise CheckpointError(f"tensor {source}: {error}; nothing was written") from None


def row_order(matrix: Tensor | QuantizedTensor, index: Tensor) -> Tensor | QuantizedTensor:
    """`matrix` with rows in the order of `index`; a quantized one stays so where each row has its own scales."""
    if isinstance(matrix, PackedTensor):
        scale = matrix.scale[index] if len(matrix.scale) > 1 else matrix.scale
        zero_point = None if matrix.zero_point is None else matrix.zero_point[index]
        return PackedTensor(matrix.words[index], scale, zero_point, matrix.scheme, matrix.shape)
    if isinstance(matrix, FloatTensor) and matrix.scheme == MXFP4:
        return FloatTensor(matrix.codes[index], matrix.scale[index], None, matrix.scheme, matrix.shape)
    return matrix.rows(index) if isinstance(matrix, QuantizedTensor) else matrix[index]
