"""llama.cpp, built here for this processor from the `llama-cpp-python` sdist."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers.compiler import build_in_words, native_flags
from benchmarks.peers.environment import Environment
from benchmarks.peers.models import Models
from benchmarks.peers.peer import Peer, Variant

_WITHOUT_COMMON = Path(__file__).with_name("llama_cpp.cmake")


def _cmake_arguments() -> str:
    """scikit-build-core splits them at spaces, as a shell would."""
    arguments = ["-DGGML_NATIVE=ON", "-DLLAVA_BUILD=OFF", f"-DCMAKE_PROJECT_llama_cpp_INCLUDE={_WITHOUT_COMMON}"]
    if flags := native_flags():
        arguments += [f"'-DCMAKE_{language}_FLAGS={flags}'" for language in ("C", "CXX")]
    return " ".join(arguments)


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
