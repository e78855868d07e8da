"""transformers in this project's own environment: the library that everybody compares with."""

from __future__ import annotations

from benchmarks.peers.environment import Environment
from benchmarks.peers.models import Models
from benchmarks.peers.peer import Peer, Variant


def _variants(models: Models) -> list[Variant]:
    return [Variant(dtype, models.hugging_face, {"dtype": dtype}) for dtype in ("bfloat16", "float32")]


TRANSFORMERS = Peer(
    "transformers",
    Environment("transformers", python_of_this_project=True),
    "transformers",
    _variants,
    variables={"HF_HUB_OFFLINE": "1"},
)
