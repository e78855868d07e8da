"""A worker as the process that measures sees it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from octavo.core.errors import OctavoError

_QUIT_LIMIT_SECONDS = 5.0


class WorkerFailed(OctavoError):
    """A checkpoint could not be measured; the text says why, and the other checkpoints can be."""


class WorkerProcess:
    """A process that measures one checkpoint. Leaving the context ends it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "octavo.measure.compare.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def ask(self, do: str, progress: Callable[[int, int], None] = lambda done, total: None, **fields: Any) -> Any:
        """The answer to one command. Raises `WorkerFailed` with the worker's words."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({"do": do, **fields}) + "\n")
            self._process.stdin.flush()
        for line in self._process.stdout:
            message = json.loads(line)
            if "progress" in message:
                progress(*message["progress"])
            elif "error" in message:
                raise WorkerFailed(message["error"])
            else:
                return message["result"]
        raise WorkerFailed(self._last_words())

    def close(self) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(_QUIT_LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _last_words(self) -> str:
        code = self._process.wait(_QUIT_LIMIT_SECONDS)
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return f"the process that measured it {how}" + (f": {lines[-1][:300]}" if lines else "")
