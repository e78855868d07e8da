"""A Hugging Face directory as every writer here leaves it: weight files, config.json, tokenizer, small files.

What a format adds is an `Encoder`: which tensors stand for a matrix, and what the config says of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from octavo.core.errors import CheckpointError, InvalidField
from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.weights.atomic_directory import atomic_directory, restore_replaced
from octavo.weights.checkpoint import CONFIG_NAME
from octavo.weights.safetensors_directory import read_json
from octavo.weights.shard_writer import DEFAULT_SHARD_BYTES, ShardWriter
from octavo.weights.stored_model import StoredModel

if TYPE_CHECKING:
    from octavo.text.tokenizer import Tokenizer

#: Written into quantization configs, so that a checkpoint of ours is known for one.
PRODUCER = "octavo"
#: How a checkpoint was made and what it lost; only Octavo writes one.
REPORT_NAME = "octavo.json"
#: Hugging Face's name of the output head; a tied model has no tensor of this name.
HEAD_WEIGHT = "lm_head.weight"
GENERATION_CONFIG_NAME = "generation_config.json"


@dataclass(frozen=True, slots=True)
class WrittenCheckpoint:
    """What was written. `tensor_bytes` by `<name>`, all parts of a packed module together; `total_bytes` is the weight
    files', headers included; `notes` say what a reader other than Octavo will not manage."""

    directory: Path
    tensor_bytes: dict[str, int]
    total_bytes: int
    num_weights: int
    notes: tuple[str, ...] = ()

    @property
    def true_bits_per_weight(self) -> float:
        return self.total_bytes * 8 / self.num_weights


class Encoder(Protocol):
    """What a format makes of a model. `encode` is called once for each tensor, in the order of names; the other
    methods afterwards."""

    def encode(self, name: str, tensor: Tensor | QuantizedTensor) -> dict[str, Tensor]:
        """Stored tensors by their full names. Raises `InvalidField` where the format cannot hold this one."""

    def quantization_config(self) -> dict[str, Any] | None:
        """The section of config.json; None: the model is dense."""

    def notes(self) -> tuple[str, ...]:
        """What readers other than Octavo will not manage."""

    def files(self) -> dict[str, bytes]:
        """Further files of the format by name."""


def write_model_directory(
    directory: Path,
    model: StoredModel,
    encoder: Encoder,
    *,
    overwrite: bool = False,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
) -> WrittenCheckpoint:
    """Write `directory` whole or not at all; equal arguments give equal bytes.

    An existing Octavo checkpoint is replaced; another non-empty directory only with `overwrite`. Raises `InvalidField`
    for arguments that contradict each other or that the format cannot hold, `CheckpointError` for NaN or infinity.
    """
    directory = Path(directory)
    check_target(directory, overwrite)
    check_extra_names(model.extra_files)
    tied = is_tied(model.tensors, model.config)
    tensor_bytes: dict[str, int] = {}
    num_weights = 0
    with atomic_directory(directory) as partial:
        shards = ShardWriter(partial, shard_bytes)
        for name in sorted(model.tensors):
            tensor = model.tensors[name]
            parts = encoder.encode(name, tensor)
            check_finite(parts)
            shards.add(parts)
            tensor_bytes[name] = sum(part.nbytes for part in parts.values())
            num_weights += torch.Size(tensor.shape).numel()
        total_bytes = shards.finish()
        section = encoder.quantization_config()
        config = {**model.config, "tie_word_embeddings": tied}
        write_json(partial / CONFIG_NAME, config if section is None else {**config, "quantization_config": section})
        write_companions(partial, model.config, model.tokenizer, {**model.extra_files, **encoder.files()})
    return WrittenCheckpoint(directory, tensor_bytes, total_bytes, num_weights, encoder.notes())


def check_target(directory: Path, overwrite: bool = False) -> None:
    """Raise `InvalidField` where writing would destroy what is not ours. Cheap: for the pre-flight."""
    restore_replaced(directory.absolute())
    if not directory.exists():
        return
    if not directory.is_dir():
        raise InvalidField("output", str(directory), "is a file; name a directory")
    if any(directory.iterdir()) and not overwrite and not _is_ours(directory):
        raise InvalidField("output", str(directory), "is a non-empty directory that Octavo did not write; name another")


def _is_ours(directory: Path) -> bool:
    if (directory / REPORT_NAME).is_file():
        return True
    try:
        section = read_json(directory / CONFIG_NAME).get("quantization_config")
    except CheckpointError:
        return False
    if not isinstance(section, dict):
        return False
    quantizers = (section.get("meta") or {}).get("quantizer") or []
    return section.get("producer") == PRODUCER or any(str(name).startswith(f"{PRODUCER}:") for name in quantizers)


def is_tied(tensors: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """The config's word, checked against the tensors; without a word, the tensors'."""
    has_head = HEAD_WEIGHT in tensors
    tied = config.get("tie_word_embeddings")
    if tied is None:
        return not has_head
    if bool(tied) == has_head:
        wanted = f"a tied model has no {HEAD_WEIGHT}" if tied else f"an untied model needs {HEAD_WEIGHT}"
        raise InvalidField("config.tie_word_embeddings", tied, f"the tensors disagree: {wanted}")
    return bool(tied)


def check_finite(parts: Mapping[str, Tensor]) -> None:
    """Raise `CheckpointError` naming the stored tensor that holds NaN or infinity."""
    for part, tensor in parts.items():
        if not tensor.is_floating_point():
            continue
        wide = tensor.to(torch.float32) if tensor.itemsize == 1 else tensor  # torch knows no isfinite of FP8
        if not torch.isfinite(wide).all():
            raise CheckpointError(f"tensor {part} holds NaN or infinity; nothing was written")


def check_extra_names(extra_files: Mapping[str, bytes]) -> None:
    for name in extra_files:
        if Path(name).name != name or name == CONFIG_NAME or ".safetensors" in name:
            raise InvalidField("extra_files", name, "must be a plain file name that the writer does not write itself")


def write_companions(
    directory: Path, config: Mapping[str, Any], tokenizer: Tokenizer | None, extra_files: Mapping[str, bytes]
) -> None:
    """Tokenizer and small files; `extra_files` win over what `tokenizer` saves."""
    if tokenizer is not None:
        tokenizer.save(directory)
    for name, content in extra_files.items():
        (directory / name).write_bytes(content)
    if GENERATION_CONFIG_NAME not in extra_files:
        settings = {key: config.get(key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
        if tokenizer is not None and tokenizer.eos_ids:
            settings["eos_token_id"] = list(tokenizer.eos_ids)
        known = {key: value for key, value in settings.items() if value is not None}
        write_json(directory / GENERATION_CONFIG_NAME, {"_from_model_config": True, **known})


def write_json(file: Path, value: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
