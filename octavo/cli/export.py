"""`octavo export`: a stored model in another format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def run(
    model: Annotated[str, typer.Argument(help="A directory, a .gguf file or a catalog name.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Directory to write; a .gguf file for gguf.")],
    format: Annotated[str, typer.Option(help="gptq, awq, compressed-tensors, fp8, gguf, bitnet or hf (dense).")],
    dtype: Annotated[
        str | None, typer.Option(help="float32, bfloat16, float16: of hf, and of modules a format cannot hold.")
    ] = None,
    file_type: Annotated[str | None, typer.Option("--type", help="gguf: round to this type, such as Q4_K_M.")] = None,
    statistics: Annotated[
        Path | None, typer.Option(help="With --type: what `octavo calibrate` left; weighs errors by their inputs.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what Octavo did not write.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Write MODEL in another format, without loss where that can hold it, and have another reader confirm it.

    What a format cannot hold is refused before anything is written, with the module and the reason.
    """
    from octavo.api import export

    report = export(model, output, format, dtype=dtype, file_type=file_type, statistics=statistics, overwrite=overwrite)
    print(json.dumps(report.to_dict()) if as_json else report)
