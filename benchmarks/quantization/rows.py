"""The rows of the comparison: who quantizes to what."""

from __future__ import annotations

from dataclasses import dataclass

GROUP = 64


@dataclass(frozen=True)
class Row:
    """`tool` is `octavo` or a peer's environment; `options` are those of `octavo quantize`, `bits` what a peer's GPTQ
    is told, `file_type` what llama.cpp's quantizer is (its `enum llama_ftype`)."""

    name: str
    tool: str
    options: tuple[str, ...] = ()
    bits: int = 4
    file_type: int | None = None

    @property
    def title(self) -> str:
        if self.file_type is not None:
            return self.name.replace("-", " ", 1)
        return self.name if self.tool == "octavo" else f"{self.tool} GPTQ {self.bits}"


def _octavo(name: str, *options: str) -> Row:
    return Row(name, "octavo", options)


#: Updates of each block: minutes on two cores.
_STEPS = ("--steps", "40")
_BLOCKS = ("--rotation-block", "32")


def _integer(bits: int) -> list[Row]:
    def row(name: str, *options: str) -> Row:
        return _octavo(f"{name}-{bits}", "--bits", str(bits), "--group", str(GROUP), *options)

    return [
        row("rtn", "--method", "rtn"),
        row("rtn-asym", "--method", "rtn", "--asymmetric"),
        row("awq", "--method", "rtn", "--transform", "awq"),
        row("gptq"),
        row("gptq-asym", "--asymmetric"),
        row("awq+gptq", "--transform", "awq"),
        row("rotate+gptq", "--transform", "rotate"),
        row("signround", "--method", "signround", *_STEPS),
        row("qat", "--method", "qat", *_STEPS),
        row("gptq+distill", "--distill-steps", "40" if bits == 2 else "16", "--train", "all"),
        Row(f"llmcompressor-gptq-{bits}", "llmcompressor", bits=bits),
        Row(f"gptqmodel-gptq-{bits}", "gptqmodel", bits=bits),
    ]


#: `enum llama_ftype` of the types beside ours.
_LLAMA_CPP = {"Q4_0": 2, "IQ4_NL": 25, "Q2_K": 10, "Q3_K_M": 12, "Q4_K_M": 15}

ROWS = {
    row.name: row
    for row in [
        *(row for bits in (4, 3, 2) for row in _integer(bits)),
        Row("fit-4.25", "octavo", ("fit", "--bpw", "4.25")),
        Row("fit-3.5", "octavo", ("fit", "--bpw", "3.5")),
        Row("fit-5.45", "octavo", ("fit", "--bpw", "5.45")),
        # One scheme for everything, the embedding too, in as many bytes as a fit.
        _octavo("uniform-4.25", "--bits", "4", "--group", "64", "--embedding-bits", "4"),
        _octavo("uniform-3.5", "--bits", "3", "--group", "32", "--embedding-bits", "3"),
        _octavo("w8a8", "--scheme", "w8a8", "--method", "rtn"),
        _octavo("w8a8-smooth", "--scheme", "w8a8", "--method", "rtn", "--transform", "smooth"),
        _octavo("w8a8-static-smooth", "--scheme", "w8a8-static", "--method", "rtn", "--transform", "smooth"),
        _octavo("fp8", "--scheme", "fp8", "--method", "rtn"),
        _octavo("fp8-static", "--scheme", "fp8-static", "--method", "rtn"),
        _octavo("fp8-block", "--scheme", "fp8-block", "--method", "rtn"),
        _octavo("nvfp4", "--scheme", "nvfp4", "--method", "rtn"),
        _octavo("nvfp4-gptq", "--scheme", "nvfp4", "--method", "gptq"),
        _octavo("nvfp4-rotate", "--scheme", "nvfp4", "--method", "gptq", "--transform", "rotate", *_BLOCKS),
        _octavo("mxfp4", "--scheme", "mxfp4", "--method", "rtn"),
        _octavo("mxfp4-gptq", "--scheme", "mxfp4", "--method", "gptq"),
        _octavo("mxfp4-rotate", "--scheme", "mxfp4", "--method", "gptq", "--transform", "rotate", *_BLOCKS),
        *(Row(f"llama.cpp-{name}", "llama.cpp", file_type=number) for name, number in _LLAMA_CPP.items()),
        _octavo("nvfp4a4", "--scheme", "nvfp4a4", "--method", "rtn"),
    ]
}
