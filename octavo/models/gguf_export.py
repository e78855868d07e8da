"""From a stored model under Hugging Face names to a GGUF file that llama.cpp loads; `gguf` reads the same back.

What llama.cpp does to the numbers is done here: rows of q and k in pairs (architecture `llama`), + 1 in Gemma's norms,
Llama 3.1's rotation as a tensor, experts of a layer in one stack.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from octavo.core.errors import CheckpointError, InvalidField
from octavo.core.storage import replacing
from octavo.models.gguf_metadata import PAIRED_ROTATION, architecture_of, model_metadata, rope_divisors
from octavo.models.gguf_tensors import GgufTensor, list_tensors
from octavo.models.spec import ModelSpec
from octavo.numerics.ggml import PLAIN_DTYPES
from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.weights.gguf_encoding import EncodingNotes, encode_matrices, row_order, stored_type
from octavo.weights.gguf_file_types import STORED_NUMBERS, FileType, find_file_type, fitting_type
from octavo.weights.gguf_target import QUANTIZED_BY, check_gguf_target
from octavo.weights.gguf_writer import GgufWriter
from octavo.weights.model_directory import WrittenCheckpoint, is_tied
from octavo.weights.stored_model import StoredModel

_DERIVED_SUFFIXES = (".rotary_emb.inv_freq", ".attn.masked_bias")
_ROPE_DIVISORS = "rope_freqs.weight"
_QUANTIZATION_VERSION = 2


def export_gguf(
    file: Path,
    spec: ModelSpec,
    model: StoredModel,
    file_type: str | None = None,
    *,
    importance: Mapping[str, Tensor] | None = None,
    name: str | None = None,
    overwrite: bool = False,
) -> WrittenCheckpoint:
    """Write `file` whole or not at all; equal arguments give equal bytes.

    `file_type` is one of `FILE_TYPES` (`Q4_K_M`, ...). Without one, each matrix is stored as the source has it, and
    one whose grid has no equal in GGUF is refused. With one, codes are copied where the type can hold them and
    rounded again elsewhere. `notes` list what was rounded again, which type took over where rows are not whole blocks,
    and what GGUF cannot say.

    `importance`: mean square of each input `[inputs]` by module name weighs the errors of a rounding. `name` is the
    model's, the file's stem if None. An existing file is replaced if Octavo wrote it, or with `overwrite`. Raises
    `InvalidField`, `UnsupportedModel` (what GGUF has no form for) and `CheckpointError` (NaN, missing or unused
    tensors).
    """
    return _Export(spec, model, file_type, importance or {}).write(Path(file), name, overwrite)


@dataclass(frozen=True, slots=True)
class _Encoded:
    shape: tuple[int, ...]
    type_name: str
    data: Tensor


class _Export:
    """One run: decisions, then one pass over the tensors."""

    def __init__(
        self, spec: ModelSpec, model: StoredModel, file_type: str | None, importance: Mapping[str, Tensor]
    ) -> None:
        if model.tokenizer is None:
            raise InvalidField("tokenizer", None, "a GGUF file carries its tokenizer; this model came without one")
        self._spec, self._model, self._importance = spec, model, importance
        self._architecture = architecture_of(spec)
        self._file_type: FileType | None = None if file_type is None else find_file_type(file_type)
        self._tied = is_tied(model.tensors, model.config)
        self._tensors = list_tensors(spec, model.tensors, self._tied)
        self._check_names()
        self._notes = EncodingNotes()
        self._types: Counter[str] = Counter()
        self._check_companions()

    def write(self, file: Path, name: str | None, overwrite: bool) -> WrittenCheckpoint:
        check_gguf_target(file, overwrite)
        metadata = self._metadata(name or file.stem)
        divisors = rope_divisors(self._spec)
        counts = {tensor.name: tensor.num_dimensions for tensor in self._tensors}
        if divisors is not None:
            counts[_ROPE_DIVISORS] = 1
        tensor_bytes: dict[str, int] = {}
        num_weights = 0
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as partial, partial.open("wb") as stream:
            writer = GgufWriter(stream, metadata, counts)
            if divisors is not None:
                writer.add(_ROPE_DIVISORS, tuple(divisors.shape), "F32", divisors.contiguous().view(torch.uint8))
            for tensor in self._tensors:
                encoded = self._encode(tensor)
                writer.add(tensor.name, encoded.shape, encoded.type_name, encoded.data)
                share = encoded.data.numel() // len(tensor.sources)
                tensor_bytes |= dict.fromkeys(tensor.sources, share)
                num_weights += torch.Size(encoded.shape).numel()
            total_bytes = writer.finish(file_type=self._number())
        return WrittenCheckpoint(file, tensor_bytes, total_bytes, num_weights, self._notes.lines())

    def _check_names(self) -> None:
        used = {source for tensor in self._tensors for source in tensor.sources}
        stored = {name for name in self._model.tensors if not name.endswith(_DERIVED_SUFFIXES)}
        for missing in sorted(used - stored):
            raise CheckpointError(f"tensor {missing} is missing; nothing was written")
        for unused in sorted(stored - used):
            raise CheckpointError(f"tensor {unused} has no place in a GGUF file of architecture {self._architecture}")

    def _check_companions(self) -> None:
        """Input grids and KV scales have no place in GGUF: said, or refused where a file as stored was asked for."""
        for field, entries in (("input quantizers", self._model.inputs), ("KV scales", self._model.kv_scales)):
            if entries and self._file_type is None:
                raise InvalidField(
                    "type", None, f"GGUF has no place for this model's {field}; name a type to lose them"
                )
            if entries:
                self._notes.add(f"GGUF has no place for {field}: those of {len(entries)} modules are left out")
        window = self._spec.layers[0].window
        if self._architecture == "llama" and window is not None:
            self._notes.add(f"llama.cpp computes this architecture without its window of {window} positions")

    def _metadata(self, name: str) -> dict[str, object]:
        assert self._model.tokenizer is not None
        return {
            "general.architecture": self._architecture,
            "general.type": "model",
            "general.name": name,
            "general.quantized_by": QUANTIZED_BY,
            "general.quantization_version": _QUANTIZATION_VERSION,
            "general.file_type": 0,
            **model_metadata(self._spec),
            **self._model.tokenizer.to_gguf(self._spec.vocab_size),
        }

    def _number(self) -> int:
        """The file type's, or that of the commonest type among a layer's matrices stored as they were."""
        if self._file_type is not None:
            return self._file_type.number
        return STORED_NUMBERS[self._types.most_common(1)[0][0]]

    def _encode(self, tensor: GgufTensor) -> _Encoded:
        parts = [self._transform(tensor, self._model.tensors[source]) for source in tensor.sources]
        for source, part in zip(tensor.sources, parts, strict=True):
            if tuple(part.shape) != tensor.source_shape:
                raise CheckpointError(f"tensor {source} has shape {tuple(part.shape)}, {tensor.source_shape} is meant")
        if tensor.module is None:
            [part] = parts
            assert isinstance(part, Tensor)
            return _Encoded(tuple(part.shape), "F32", part.float().contiguous().view(torch.uint8).reshape(-1))
        importance = [self._importance.get(source.removesuffix(".weight")) for source in tensor.sources]
        type_name = self._type_of(tensor, parts)
        self._types[type_name] += 1
        data = encode_matrices(tensor.name, tensor.sources, parts, type_name, importance, self._notes)
        return _Encoded(tensor.shape, type_name, data)

    def _type_of(self, tensor: GgufTensor, parts: list[Tensor | QuantizedTensor]) -> str:
        assert tensor.module is not None
        if self._file_type is None:
            return stored_type(parts, tensor.sources[0])
        wanted = self._file_type.tensor_type(tensor.module, tensor.layer, self._spec.num_layers)
        fitting = fitting_type(wanted, tensor.source_shape[-1])
        if fitting != wanted:
            self._notes.add_fallback(tensor.name, wanted, fitting, tensor.source_shape[-1])
        return fitting

    def _transform(self, tensor: GgufTensor, part: Tensor | QuantizedTensor) -> Tensor | QuantizedTensor:
        """llama.cpp's changes to the numbers, and what only a dense tensor can be."""
        if tensor.rotated_heads and self._architecture in PAIRED_ROTATION:
            return row_order(part, _pair_order(part.shape[0], tensor.rotated_heads))
        if tensor.module is None and isinstance(part, QuantizedTensor):
            part = part.dequantize()
        if tensor.is_norm and self._spec.norm_offset:
            assert isinstance(part, Tensor)
            return part.to(torch.float32) + self._spec.norm_offset
        return part


def _pair_order(num_rows: int, num_heads: int) -> Tensor:
    """Indices that bring each head's rows from halves (0, 1, ..., d/2, ...) to pairs (0, d/2, 1, d/2 + 1, ...)."""
    halves = torch.arange(num_rows).reshape(num_heads, 2, num_rows // num_heads // 2)
    return halves.transpose(1, 2).reshape(-1)


assert set(PLAIN_DTYPES) <= STORED_NUMBERS.keys()
