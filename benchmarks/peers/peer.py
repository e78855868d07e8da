"""What a peer is to the comparison: an environment, a worker, and the variants in which it may be run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.environment import Environment
from benchmarks.peers.models import Models


@dataclass(frozen=True)
class Variant:
    """One way to run a peer: the model file and what its worker's `load` is told beside the sizes."""

    name: str
    model: Path
    settings: Mapping[str, Any] = field(default_factory=dict)

    def why_missing(self) -> str | None:
        return None if self.model.exists() else f"no {self.model}; run: python -m benchmarks.peers setup"


@dataclass(frozen=True)
class Peer:
    """`worker` is a module of `benchmarks.peers.workers`; `variables` are set for its process.

    `notes` says what a reader of the table must know, such as how it was built.
    """

    name: str
    environment: Environment
    worker: str
    variants: Callable[[Models], list[Variant]]
    variables: Mapping[str, str] = field(default_factory=dict)
    notes: str = ""
