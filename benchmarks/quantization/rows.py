"""The rows of the comparison: who quantizes to what."""

from __future__ import annotations

from dataclasses import dataclass

GROUP = 64


@dataclass(frozen=True)
class Row:
    """`tool` is `octavo` or a peer's environment; `options` are `octavo quantize` options, `bits` a peer's."""

    name: str
    tool: str
    options: tuple[str, ...] = ()
    bits: int = 4

    @property
    def title(self) -> str:
        return self.name if self.tool == "octavo" else f"{self.tool} GPTQ {self.bits}"


def _octavo(name: str, *options: str) -> Row:
    return Row(name, "octavo", options)


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
        row("signround", "--method", "signround"),
        row("qat", "--method", "qat"),
        row("qat+distill", "--method", "qat", "--distill-steps", "60"),
        row("gptq+distill", "--distill-steps", "60"),
        Row(f"llmcompressor-gptq-{bits}", "llmcompressor", bits=bits),
        Row(f"gptqmodel-gptq-{bits}", "gptqmodel", bits=bits),
    ]


ROWS = {
    row.name: row
    for row in [
        *(row for bits in (4, 3, 2) for row in _integer(bits)),
        Row("fit-4.25", "octavo", ("fit", "--bpw", "4.25")),
        Row("fit-3.5", "octavo", ("fit", "--bpw", "3.5")),
        _octavo("w8a8", "--scheme", "w8a8", "--method", "rtn"),
        _octavo("w8a8-smooth", "--scheme", "w8a8", "--method", "rtn", "--transform", "smooth"),
        _octavo("w8a8-static-smooth", "--scheme", "w8a8-static", "--method", "rtn", "--transform", "smooth"),
        _octavo("fp8", "--scheme", "fp8", "--method", "rtn"),
        _octavo("fp8-static", "--scheme", "fp8-static", "--method", "rtn"),
        _octavo("fp8-block", "--scheme", "fp8-block", "--method", "rtn"),
        _octavo("nvfp4", "--scheme", "nvfp4", "--method", "rtn"),
        _octavo("nvfp4-gptq", "--scheme", "nvfp4", "--method", "gptq"),
        _octavo("mxfp4", "--scheme", "mxfp4", "--method", "rtn"),
        _octavo("mxfp4-gptq", "--scheme", "mxfp4", "--method", "gptq"),
        _octavo("nvfp4a4", "--scheme", "nvfp4a4", "--method", "rtn"),
    ]
}
