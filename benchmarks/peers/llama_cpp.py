"""llama.cpp, built here for this processor from the `llama-cpp-python` sdist."""

from __future__ import annotations

from benchmarks.peers.compiler import build_in_words, native_flags
from benchmarks.peers.environment import Environment
from benchmarks.peers.models import Models
from benchmarks.peers.peer import Peer, Variant


def _cmake_arguments() -> str:
    flags = native_flags()
    extra = f" -DCMAKE_C_FLAGS='{flags}' -DCMAKE_CXX_FLAGS='{flags}'" if flags else ""
    return "-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF" + extra


def _variants(models: Models) -> list[Variant]:
    files = {"Q4_0": models.gguf("Q4_0"), "Q4_1": models.stored_gguf}
    return [
        Variant(f"{kind}, flash attention {'on' if on else 'off'}", path, {"flash_attention": on})
        for kind, path in files.items()
        for on in (False, True)
    ]


LLAMA_CPP = Peer(
    "llama.cpp",
    Environment(
        "llama.cpp",
        ("llama-cpp-python==0.3.36", "numpy"),
        ("--no-binary", "llama-cpp-python"),
        {"CMAKE_ARGS": _cmake_arguments()},
    ),
    "llama_cpp",
    _variants,
    notes=build_in_words(),
)
