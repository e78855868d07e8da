"""`octavo.json`: what a quantized checkpoint remembers about itself."""

from __future__ import annotations

import json
import os
import platform
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import octavo
from octavo.core.storage import replacing
from octavo.core.units import format_bytes, format_seconds
from octavo.quantize.recipe import Recipe
from octavo.quantize.result import ModuleReport

FILE_NAME = "octavo.json"
#: Raised by one when the file's meaning changes.
SCHEMA_VERSION = 1


@dataclass(slots=True)
class QuantizationReport:
    """How a checkpoint was made, and what it lost. `quality` is a `QualityReport` as a dict and
    `quality_text` the same for people, None if not measured; `fit` is how `octavo fit` chose the schemes."""

    source: str
    output: str
    recipe: Recipe
    modules: list[ModuleReport]
    calibration: dict[str, Any] | None
    source_bytes: int
    output_bytes: int
    bits_per_weight: float
    verification: str
    seconds: dict[str, float]
    num_resumed_blocks: int = 0
    quality: dict[str, Any] | None = None
    quality_text: str | None = None
    fit: dict[str, Any] | None = None
    caveats: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def fallbacks(self) -> list[ModuleReport]:
        return [module for module in self.modules if module.fallback is not None]

    @property
    def all_notes(self) -> list[str]:
        return [*self.notes, *starved_experts(self.modules)]

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "source": self.source,
            "output": self.output,
            "recipe": self.recipe.to_dict(),
            "bytes": {"source": self.source_bytes, "output": self.output_bytes},
            "bits_per_weight": self.bits_per_weight,
            "quality": self.quality,
            "fit": self.fit,
            "caveats": self.caveats,
            "notes": self.all_notes,
            "calibration": self.calibration,
            "verification": self.verification,
            "fallbacks": [module.name for module in self.fallbacks],
            "num_resumed_blocks": self.num_resumed_blocks,
            "seconds": {name: round(value, 2) for name, value in self.seconds.items()},
            "versions": versions(),
            "machine": machine(),
            "modules": [module.to_dict() for module in self.modules],
        }

    def write(self, directory: Path) -> Path:
        """Write `octavo.json` into `directory`, whole or not at all."""
        file = directory / FILE_NAME
        with replacing(file) as partial:
            partial.write_text(json.dumps(self.to_dict(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return file

    def __str__(self) -> str:
        methods = Counter(f"{module.method} {module.scheme}" for module in self.modules)
        lines = [
            f"{self.output}: {format_bytes(self.source_bytes)} -> {format_bytes(self.output_bytes)}, "
            f"{self.bits_per_weight:.2f} bits per weight, everything counted",
            "modules: " + ", ".join(f"{count} x {name}" for name, count in methods.most_common()),
            f"verified: {self.verification}",
            "time: " + ", ".join(f"{name} {format_seconds(value)}" for name, value in self.seconds.items()),
        ]
        lines += [f"FALLBACK {module.name}: {module.fallback}" for module in self.fallbacks]
        dead = sum(module.num_dead_inputs for module in self.modules)
        if dead:
            lines.append(f"{dead} inputs were never active on the calibration text; their weights became 0")
        return "\n".join([*lines, *(f"note: {note}" for note in (*self.caveats, *self.all_notes))])


def starved_experts(modules: list[ModuleReport]) -> list[str]:
    """A note on experts that were routed fewer calibration tokens than they have inputs; none: no note."""
    starved = [module for module in modules if module.num_lent_tokens]
    if not starved:
        return []
    least = min(starved, key=lambda module: module.num_tokens)
    return [
        f"{len(starved)} matrices of experts were routed fewer calibration tokens than they have inputs, and were also "
        f"calibrated on tokens of other experts; the fewest of its own: {least.num_tokens} ({least.name})"
    ]


def versions() -> dict[str, str]:
    return {"octavo": octavo.__version__, "torch": torch.__version__, "python": platform.python_version()}


def machine() -> dict[str, Any]:
    return {
        "processor": _processor(),
        "num_threads": torch.get_num_threads(),
        "num_cores": os.cpu_count(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
