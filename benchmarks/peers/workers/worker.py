"""The loop every worker runs, and the memory its process tree has had."""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any, Protocol, TextIO


class Runner(Protocol):
    """A peer's library behind the two calls that are measured."""

    def load(self, **options: Any) -> dict[str, Any]:
        """Get ready; returns facts to show (versions, instruction sets, weight bytes)."""

    def run(self, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        """Continue every prompt greedily by exactly `new_tokens` tokens, all given at once."""


def serve(runner: Runner) -> None:
    """Answer commands until `quit` or the end of input. Whatever a library prints goes to stderr."""
    _end_with_parent()
    answers = _private_stdout()
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "quit":
            break
        try:
            answer = _answer(runner, command)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:1000]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    # Some libraries hang or crash while they are torn down; what was measured is already told.
    os._exit(0)


def _end_with_parent() -> None:
    """A paused worker would outlive a comparison that was killed. Linux only; elsewhere the end of input does it."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def _private_stdout() -> TextIO:
    """The real stdout, with file descriptor 1 turned into stderr for everybody else."""
    private = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return private


def _answer(runner: Runner, command: dict[str, Any]) -> dict[str, Any]:
    match command["do"]:
        case "load":
            return {"facts": runner.load(**command["options"])}
        case "run":
            started = time.perf_counter()
            outputs = runner.run(command["prompts"], command["new_tokens"])
            return {"seconds": time.perf_counter() - started, "outputs": outputs}
        case "memory":
            return {"peak_rss_bytes": sum(_peak_rss_bytes(pid) for pid in _tree(os.getpid()))}
    raise ValueError(f"unknown command {command['do']!r}")


def _tree(root: int) -> list[int]:
    """`root` and all its descendants."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, waiting = [], [root]
    while waiting:
        found.append(waiting.pop())
        waiting += children.get(found[-1], [])
    return found


def _peak_rss_bytes(pid: int) -> int:
    try:
        match = re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(match[1]) * 1024 if match else 0
