"""`python -m octavo.measure.compare.worker`: one checkpoint in a process of its own, commanded by lines of JSON.

Commands: `{"do": "evaluate", "arguments": {...}}`, `{"do": "load", "model", "plan", "threads"}`, `{"do": "round"}`,
`{"do": "result"}`. Each is answered by `{"result": ...}` or `{"error": text}`; while an evaluation runs, by
`{"progress": [done, total]}` before. It ends with its standard input.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from octavo.core.errors import OctavoError


class Worker:
    """Answers commands, one at a time."""

    def __init__(self, send: Callable[[dict[str, Any]], None]) -> None:
        self._send = send
        self._meter: Any = None

    def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        try:
            return {"result": getattr(self, f"_{command.pop('do')}")(**command)}
        except OctavoError as error:
            return {"error": str(error)}
        except (MemoryError, OSError, RuntimeError) as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def _evaluate(self, arguments: dict[str, Any]) -> dict[str, Any]:
        from octavo.measure.compare.quality import measure_quality

        return measure_quality(**arguments, progress=lambda done, total: self._send({"progress": [done, total]}))

    def _load(self, model: str, plan: dict[str, Any], threads: int | None) -> None:
        from octavo.measure.compare.speed import SpeedMeter, SpeedPlan

        self._meter = SpeedMeter(model, SpeedPlan(**plan), threads)

    def _round(self) -> float:
        """Seconds it took."""
        seconds: float = self._meter.round().seconds
        return seconds

    def _result(self) -> dict[str, Any]:
        result: dict[str, Any] = self._meter.result().to_dict()
        return result


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started this decides when it ends
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever prints must not write among the answers

    def send(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")

    worker = Worker(send)
    for line in sys.stdin:
        send(worker.answer(json.loads(line)))


if __name__ == "__main__":
    main()
