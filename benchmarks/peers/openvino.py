"""OpenVINO GenAI, from its wheel. It reads GGUF files itself, so no conversion stands between."""

from __future__ import annotations

from benchmarks.peers.environment import Environment
from benchmarks.peers.models import Models
from benchmarks.peers.peer import Peer, Variant


def _variants(models: Models) -> list[Variant]:
    return [
        Variant("int4 (Q4_0 file)", models.gguf("Q4_0"), {"properties": {}}),
        Variant("fp16 file", models.gguf("F16"), {"properties": {}}),
    ]


OPENVINO = Peer("OpenVINO GenAI", Environment("openvino", ("openvino-genai==2026.4.1.0",)), "openvino", _variants)
