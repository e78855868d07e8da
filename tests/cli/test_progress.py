"""Long work in a log says now and then where it is."""

from __future__ import annotations

from octavo.cli.progress import LINE_SECONDS, ProgressLines


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_a_line_every_now_and_then_with_the_time_that_is_left() -> None:
    clock, lines = Clock(), list[str]()
    progress = ProgressLines(lines.append, clock)
    for done in range(1, 31):
        progress("quantizing", done, 30)
        clock.seconds += LINE_SECONDS / 5
    assert len(lines) == 5
    assert lines[0] == f"quantizing: 6 of 30, {LINE_SECONDS:.0f} s, about {24 * LINE_SECONDS / 5:.0f} s left"


def test_resumed_work_is_not_taken_for_fast_work() -> None:
    clock, lines = Clock(), list[str]()
    progress = ProgressLines(lines.append, clock)
    progress("quantizing", 25, 30)
    clock.seconds += 50
    progress("quantizing", 26, 30)
    assert lines == ["quantizing: 26 of 30, 50 s, about 200 s left"]


def test_quick_stages_say_nothing() -> None:
    clock, lines = Clock(), list[str]()
    progress = ProgressLines(lines.append, clock)
    for stage in ("reading", "measuring", "writing"):
        for done in range(3):
            clock.seconds += LINE_SECONDS / 4
            progress(stage, done, 3)
    assert lines == []
