"""The exact size of a `model.safetensors`, from names and shapes alone: a budget is the size of the whole file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from octavo.numerics.activations import ActivationFormat, ActivationScheme
from octavo.numerics.float_scheme import BLOCK, FloatFormat, FloatScheme, Granularity, ScaleFormat
from octavo.numerics.packing import packed_words
from octavo.numerics.scheme import IntegerScheme, Scheme

#: safetensors' dtypes in the order it stores them, widest first, and their bytes.
_DTYPES = {
    "F64": 8, "I64": 8, "F32": 4, "I32": 4, "BF16": 2, "F16": 2, "I16": 2, "F8_E4M3": 1, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip
_SCALE_DTYPES = {ScaleFormat.E4M3: "F8_E4M3", ScaleFormat.E8M0: "U8", ScaleFormat.BFLOAT16: "BF16"}
_METADATA = {"format": "pt"}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a safetensors file."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count * _DTYPES[self.dtype]


def stored_parts(
    module: str,
    shape: tuple[int, int],
    scheme: Scheme,
    scale_dtype: str,
    *,
    inputs: ActivationScheme | None = None,
    is_embedding: bool = False,
    tied_head: str | None = None,
) -> list[StoredTensor]:
    """The tensors of a quantized module in compressed-tensors' layouts; `scale_dtype` is for integers. 8-bit codes of
    an embedding, and of a linear whose `inputs` are rounded too, are stored as they are; with a head that is tied to
    the embedding (`tied_head`, the module's name) its scales are stored twice."""
    calibrated = []
    if inputs is not None and inputs.needs_scale:
        name = "input_global_scale" if inputs.format is ActivationFormat.NVFP4 else "input_scale"
        calibrated = [StoredTensor(f"{module}.{name}", "F32", (1,))]
    if isinstance(scheme, FloatScheme):
        return [*_float_parts(module, shape, scheme), *calibrated]
    return [
        *_integer_parts(module, shape, scheme, scale_dtype, is_embedding, inputs is not None, tied_head),
        *calibrated,
    ]


def _float_parts(module: str, shape: tuple[int, int], scheme: FloatScheme) -> list[StoredTensor]:
    outputs, inputs = shape
    rows = {Granularity.TENSOR: 1, Granularity.BLOCK: -(-outputs // BLOCK)}.get(scheme.granularity, outputs)
    scale_shape = (1,) if scheme.granularity is Granularity.TENSOR else (rows, scheme.num_groups(inputs))
    codes = StoredTensor(f"{module}.weight", "F8_E4M3", shape)
    if scheme.format is FloatFormat.E2M1:
        codes = StoredTensor(f"{module}.weight_packed", "U8", (outputs, inputs // 2))
    parts = [codes, StoredTensor(f"{module}.weight_scale", _SCALE_DTYPES.get(scheme.scale_format, "F32"), scale_shape)]
    return [*parts, StoredTensor(f"{module}.weight_global_scale", "F32", (1,))] if scheme.has_global_scale else parts


def _integer_parts(
    module: str,
    shape: tuple[int, int],
    scheme: IntegerScheme,
    scale_dtype: str,
    is_embedding: bool,
    rounds_inputs: bool,
    tied_head: str | None,
) -> list[StoredTensor]:
    outputs, inputs = shape
    groups = scheme.num_groups(inputs)
    scale = StoredTensor(f"{module}.weight_scale", scale_dtype, (outputs, groups))
    if scheme.bits == 8 and (is_embedding or rounds_inputs):
        copies = [] if tied_head is None else [StoredTensor(f"{tied_head}.weight_scale", scale_dtype, scale.shape)]
        return [StoredTensor(f"{module}.weight", "I8", shape), scale, *copies]
    parts = [
        StoredTensor(f"{module}.weight_packed", "I32", (outputs, packed_words(inputs, scheme.bits))),
        scale,
        StoredTensor(f"{module}.weight_shape", "I64", (2,)),
    ]
    if not scheme.symmetric:
        words = packed_words(outputs, scheme.bits)
        parts.append(StoredTensor(f"{module}.weight_zero_point", "I32", (words, groups)))
    return parts


def safetensors_bytes(tensors: Iterable[StoredTensor]) -> int:
    """Bytes of the file: the header's length, the header padded to 8, the data."""
    header: dict[str, object] = {"__metadata__": _METADATA}
    end = 0
    order = list(_DTYPES)
    for tensor in sorted(tensors, key=lambda tensor: (order.index(tensor.dtype), tensor.name)):
        start, end = end, end + tensor.num_bytes
        header[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
    length = len(json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode())
    return 8 + -(-length // 8) * 8 + end


def header_bytes(tensors: Iterable[StoredTensor], file_bytes: int) -> int:
    """At most what these tensors add to the header of a file of `file_bytes`, wherever in it they lie."""
    most = 0
    for tensor in tensors:
        entry = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [file_bytes, file_bytes]}
        most += len(json.dumps({tensor.name: entry}, separators=(",", ":"), ensure_ascii=False).encode()) - 1
    return most
