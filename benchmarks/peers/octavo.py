"""Octavo itself: 4-bit linears of group 64, 8-bit embedding, as `octavo quantize` writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.peers.environment import Environment
from benchmarks.peers.models import Models
from benchmarks.peers.peer import Peer, Variant


def octavo_peer(settings: Mapping[str, Any]) -> Peer:
    """`settings` go to `octavo.LLM` beside the sizes, such as `memory` or `dtype`."""

    def variants(models: Models) -> list[Variant]:
        shown = "".join(f", {name} {value}" for name, value in settings.items())
        return [Variant(f"{models.octavo_4bit.name}{shown}", models.octavo_4bit, settings)]

    return Peer("octavo", Environment("octavo", python_of_this_project=True), "octavo", variants)
