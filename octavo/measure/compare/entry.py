"""`CheckpointEntry`: all that is known of one checkpoint when several are put side by side."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from octavo.core.errors import CheckpointError
from octavo.measure.compare.size_parts import size_parts
from octavo.measure.compare.speed import Speed
from octavo.measure.evaluate import source_name, stored_size
from octavo.models.load import open_model_checkpoint
from octavo.quantize.provenance import FILE_NAME
from octavo.weights.checkpoint import Checkpoint
from octavo.weights.inventory import count_storage

#: `CheckpointEntry.quality_origin` of figures that the comparison itself measured.
MEASURED = "measured now"


@dataclass(slots=True)
class CheckpointEntry:
    """`quality` is a `QualityReport` as a dict and `quality_origin` where it comes from ("measured now", the
    checkpoint's octavo.json); `record` is that whole file. `size_parts` are bytes by part. `problems` say, in words,
    what could not be measured and why."""

    name: str
    weight_bytes: int
    bits_per_weight: float
    stored_as: str
    size_parts: dict[str, int] = field(default_factory=dict)
    quality: dict[str, Any] | None = None
    quality_origin: str | None = None
    speed: Speed | None = None
    record: dict[str, Any] | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def perplexity(self) -> float | None:
        return None if self.quality is None else float(self.quality["perplexity"])

    @property
    def divergence(self) -> float | None:
        """Mean KL(base || this) in nats a token; None where no base was measured."""
        comparison = None if self.quality is None else self.quality.get("comparison")
        return None if comparison is None else float(comparison["mean_divergence"])

    @property
    def top1_agreement(self) -> float | None:
        comparison = None if self.quality is None else self.quality.get("comparison")
        return None if comparison is None else float(comparison["top1_agreement"])

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "weight_bytes": self.weight_bytes,
            "bits_per_weight": self.bits_per_weight,
            "stored_as": self.stored_as,
            "size_parts": self.size_parts,
            "quality": self.quality,
            "quality_origin": self.quality_origin,
            "speed": None if self.speed is None else self.speed.to_dict(),
            "problems": self.problems,
        }


def open_entry(model: str | Path) -> CheckpointEntry:
    """What the files of `model` say without computing with it. Raises what opening raises."""
    checkpoint = open_model_checkpoint(model)
    weight_bytes, bits = stored_size(checkpoint)
    record = read_record(Path(checkpoint.source))
    entry = CheckpointEntry(
        source_name(checkpoint), weight_bytes, bits, _stored_as(checkpoint), size_parts(checkpoint), record=record
    )
    if record is not None and record.get("quality") is not None:
        entry.quality, entry.quality_origin = record["quality"], FILE_NAME
        if record["quality"].get("weight_bytes") != weight_bytes:
            entry.quality = entry.quality_origin = None
            entry.problems.append(f"its {FILE_NAME} is of files of another size: the figures in it are not used")
    checkpoint.close()
    return entry


def read_record(source: Path) -> dict[str, Any] | None:
    """The octavo.json of the checkpoint in directory `source`; None without one. Raises `CheckpointError` for one that
    is no JSON object."""
    file = source / FILE_NAME
    if not source.is_dir() or not file.is_file():
        return None
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{file}: {error}") from None
    if not isinstance(record, dict):
        raise CheckpointError(f"{file}: must hold a JSON object")
    return record


def _stored_as(checkpoint: Checkpoint) -> str:
    """The storage with the most tensors among those that hold matrices: the linears'."""
    matrices = [count for count in count_storage(checkpoint) if count.num_weights > 1e4 * count.num_tensors]
    counts = matrices or count_storage(checkpoint)
    return max(counts, key=lambda count: count.num_tensors).storage
