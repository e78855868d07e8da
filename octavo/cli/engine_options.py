"""The options of every command that runs a model, and how they become an engine.

Imports nothing heavy: the engine's libraries are loaded when one is built.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from octavo.engine import BuiltEngine, EngineConfig
    from octavo.engine.build import Progress

ModelArgument = Annotated[str, typer.Argument(help="A directory, a .gguf file or a catalog name (see `octavo pull`).")]
MemoryOption = Annotated[
    str | None, typer.Option(help="Hard total for the process, such as 2GiB; weights, KV blocks and all else.")
]
MaxModelLenOption = Annotated[
    int | None,
    typer.Option(help="Longest prompt and answer together, in tokens (unset: what the model was trained on)."),
]
DtypeOption = Annotated[str, typer.Option(help="float32 or bfloat16, for dense weights.")]
KvDtypeOption = Annotated[
    str,
    typer.Option(
        help="auto, float32, bfloat16, int8, fp8 or fp8-e5m2, for the KV blocks (auto: what the checkpoint has "
        "calibrated scales for, else the executor's own choice)."
    ),
]
ExecutorOption = Annotated[
    str, typer.Option(help="auto, native or reference (auto: native where it can run the model).")
]
ThreadsOption = Annotated[int | None, typer.Option(help="Threads of the executor (unset: one a usable core).")]
IsaOption = Annotated[
    str | None, typer.Option(help="Force an instruction set of the native executor; `octavo doctor` lists them.")
]


def build_with_progress(config: EngineConfig) -> BuiltEngine:
    """Load the model and make its engine; people who watch see a bar on stderr."""
    from octavo.engine.process_memory import spare_from_collection

    built = _build_watched(config) if sys.stderr.isatty() else _build(config)
    spare_from_collection()
    return built


def _build(config: EngineConfig, progress: Progress | None = None) -> BuiltEngine:
    from octavo.engine import build_engine

    return build_engine(config, progress)


def _build_watched(config: EngineConfig) -> BuiltEngine:
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"loading {config.model}", total=None)
        return _build(config, lambda done, total: bar.update(task, completed=done, total=total))
