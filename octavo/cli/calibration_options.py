"""The options of every command that reads calibration text. Imports nothing heavy."""

from __future__ import annotations

from typing import Annotated

import typer

_CALIBRATION = (
    "Text file, .jsonl of texts or chats (the assistant's turns count), hf:ORG/NAME[:SPLIT[:COLUMN]] or `built-in`; "
    "may be repeated, with weights: medical.txt@2."
)

Sources = Annotated[list[str] | None, typer.Option("--calibration", help=_CALIBRATION)]
Samples = Annotated[int, typer.Option(help="Calibration windows, shared out by the sources' weights.")]
SequenceLength = Annotated[int, typer.Option(help="Tokens in a calibration window.")]
