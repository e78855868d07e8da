"""The environments of the quantizers beside ours. llama.cpp's is the one that `benchmarks.peers` builds."""

from __future__ import annotations

from benchmarks.peers.environment import Environment
from benchmarks.peers.llama_cpp import LLAMA_CPP

# Anything looser pulls a CUDA build of torch, several gigabytes.
_TORCH = "torch==2.13.0"
ENVIRONMENTS = {
    environment.name: environment
    for environment in (
        Environment("llmcompressor", (_TORCH, "llmcompressor==0.14.0.1")),
        Environment("gptqmodel", (_TORCH, "gptqmodel==7.6.0")),
        LLAMA_CPP.environment,
    )
}
