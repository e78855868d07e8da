"""`octavo evaluate`: perplexity, and the distance to another model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def run(
    model: Annotated[str, typer.Argument(help="A directory, a .gguf file or a catalog name.")],
    text: Annotated[Path | None, typer.Option(help="UTF-8 text; default: held-out built-in text.")] = None,
    against: Annotated[str | None, typer.Option(help="Base model to compare with, on the same tokens.")] = None,
    windows: Annotated[int | None, typer.Option(help="First windows only; default: all.")] = None,
    window_tokens: Annotated[int | None, typer.Option(help="Tokens in a window; default 2048, or the context.")] = None,
    rows: Annotated[
        bool | None,
        typer.Option("--rows/--no-rows", help="Join lines by two newlines (WikiText); default: for *.raw files."),
    ] = None,
    served: Annotated[
        bool, typer.Option("--served", help="Measure MODEL as the native executor computes it, not in float32.")
    ] = False,
    kv_dtype: Annotated[
        str | None, typer.Option(help="With --served: float32, bfloat16 (default) or int8 keys and values.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Measure MODEL on a text: perplexity over non-overlapping windows; with --against also KL divergence (mean and
    99.9 %) and top-1 agreement; bootstrap intervals, bytes and bits per weight. The protocol is printed with it."""
    from octavo.api import evaluate
    from octavo.cli.progress import progress_bar
    from octavo.core.errors import InvalidField

    if kv_dtype is not None and not served:
        raise InvalidField("kv-dtype", kv_dtype, "it needs --served: in float32 there are no stored keys and values")
    with progress_bar() as (progress, _):
        report = evaluate(
            model,
            text,
            against=against,
            windows=windows,
            window_tokens=window_tokens,
            rows=rows,
            served=served,
            kv_dtype=kv_dtype or "bfloat16",
            progress=progress,
        )
    print(json.dumps(report.to_dict()) if as_json else report)
