"""`octavo compare`: several checkpoints in one table and on one page."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer


def run(
    checkpoints: Annotated[list[str], typer.Argument(help="Directories, .gguf files or catalog names.")],
    text: Annotated[Path | None, typer.Option(help="UTF-8 text; default: held-out built-in text.")] = None,
    windows: Annotated[int, typer.Option(help="First windows of the text.")] = 4,
    window_tokens: Annotated[
        int | None, typer.Option(help="Tokens in a window; default 2048, or the shortest context.")
    ] = None,
    against: Annotated[str | None, typer.Option(help="Base model: KL divergence and top-1 agreement with it.")] = None,
    quality: Annotated[bool, typer.Option(help="Measure perplexity (and the distance to the base).")] = True,
    speed: Annotated[bool, typer.Option(help="Measure TTFT, tokens per second and memory.")] = True,
    rounds: Annotated[int, typer.Option(help="Interleaved rounds of the speed measurement.")] = 3,
    threads: Annotated[int | None, typer.Option(help="Of the native executor; default: one for each core.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a self-contained page here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Put CHECKPOINTS (any format that is read) side by side: perplexity, KL to the base, top-1, bytes, time to first
    token, tokens per second, peak memory; which are Pareto-optimal is marked.

    The files themselves are measured, all by one protocol, each in a process of its own; figures of an octavo.json
    that were measured by the same protocol are taken from there. Ctrl-C shows what is measured so far.
    """
    from octavo.api import compare
    from octavo.cli.main import EXIT_INTERRUPTED
    from octavo.cli.progress import progress_bar

    with progress_bar() as (progress, say):
        comparison = compare(
            checkpoints,
            text,
            windows=windows,
            window_tokens=window_tokens,
            against=against,
            quality=quality,
            speed=speed,
            rounds=rounds,
            threads=threads,
            html=html,
            progress=progress,
            say=say,
        )
    print(json.dumps(comparison.to_dict()) if as_json else comparison)
    if comparison.interrupted:
        sys.exit(EXIT_INTERRUPTED)
