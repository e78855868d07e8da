"""What `/v1/models` says of the model that is served, its measured quality included."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from octavo.core.errors import CheckpointError
from octavo.serve.responses import ModelCard

#: Written by `octavo quantize` beside the weights.
QUALITY_FILE = "octavo.json"


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """`name` is what requests must write in `model`; `max_model_len` bounds prompt and answer together, in tokens."""

    name: str
    root: str
    max_model_len: int
    quality: dict[str, Any] | None = None
    created_unix_seconds: int = field(default_factory=lambda: int(time.time()))

    def card(self) -> ModelCard:
        return {
            "id": self.name,
            "object": "model",
            "created": self.created_unix_seconds,
            "owned_by": "octavo",
            "root": self.root,
            "max_model_len": self.max_model_len,
            "quality": self.quality,
        }


def read_quality(source: Path) -> dict[str, Any] | None:
    """What was measured on the checkpoint in directory `source`, with every caveat; None where nothing was.

    The report also tells how the checkpoint was made, module by module; that is left to `octavo inspect`. Raises
    `CheckpointError` if it cannot be read or holds NaN: a loss that is not a number must not be shown as one.
    """
    path = source / QUALITY_FILE
    if not path.is_file():
        return None
    try:
        report = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from None
    if not isinstance(report, dict) or not isinstance(report.get("quality"), dict | None):
        raise CheckpointError(f"{path}: must be an object whose `quality` is an object or null")
    quality: dict[str, Any] | None = report.get("quality")
    if quality is None:
        return None
    caveats = dict.fromkeys([*report.get("caveats", []), *quality.get("caveats", [])])
    return {**quality, "caveats": list(caveats)}


def _refuse_constant(name: str) -> None:
    raise ValueError(f"holds {name}, which is not JSON")
