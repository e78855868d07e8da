"""Writes a GGUF file in another type, with llama.cpp's own quantizer: SOURCE TARGET TYPE (a number of llama_ftype)."""

from __future__ import annotations

import ctypes
import sys


def main(source: str, target: str, file_type: int) -> None:
    import llama_cpp.llama_cpp as api

    parameters = api.llama_model_quantize_default_params()
    parameters.ftype = file_type
    parameters.allow_requantize = True
    if api.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(parameters)):
        sys.exit(f"llama.cpp could not write {target}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
