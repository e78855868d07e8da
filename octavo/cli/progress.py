"""Progress of long work on stderr: a bar on a terminal, now and then a line in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from octavo.api import Progress, Say

#: Between two lines of a log.
LINE_SECONDS = 20.0


@contextmanager
def progress_bar() -> Iterator[tuple[Progress, Say]]:
    """How work reports stages and how it says a line, which stands above the bar where there is one."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)

    def say(line: str) -> None:
        console.print(line, markup=False, soft_wrap=True)

    if not sys.stderr.isatty():
        yield ProgressLines(say), say
        return
    with _bar(console) as progress:
        yield progress, say


@contextmanager
def _bar(console: Console) -> Iterator[Progress]:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
        tasks: dict[str, TaskID] = {}

        def progress(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=total)
            bar.update(tasks[stage], completed=done)

        yield progress


class ProgressLines:
    """`STAGE: 12 of 30, 61 s, about 92 s left`, at most one every `LINE_SECONDS`: quick work says nothing.

    What is left is reckoned from the first report of the stage on, so that blocks finished by an earlier run do not
    count as fast ones.
    """

    def __init__(self, say: Say, now: Callable[[], float] = time.monotonic) -> None:
        self._say, self._now = say, now
        self._stage = ""
        self._started = self._said = now()
        self._done_before = 0

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = self._now()
        if stage != self._stage:
            self._stage, self._done_before = stage, done
            self._started = self._said = now
            return
        if now - self._said < LINE_SECONDS:
            return
        self._said, elapsed = now, now - self._started
        advanced = done - self._done_before
        left = f", about {elapsed * (total - done) / advanced:.0f} s left" if advanced > 0 else ""
        self._say(f"{stage}: {done:,} of {total:,}, {elapsed:.0f} s{left}")
