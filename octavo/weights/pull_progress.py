"""A progress bar for a pull, on stderr."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from octavo.weights.pull_index import PullProgress


@contextmanager
def terminal_progress(label: str) -> Iterator[PullProgress]:
    """A bar with bytes, speed and time left; drawn only where stderr is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(True), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(label, total=None)

        def show(here: int, total: int) -> None:
            bar.update(task, completed=here, total=total)

        yield show
