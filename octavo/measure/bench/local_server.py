"""`octavo serve` as a process of its own, for as long as it is measured."""

from __future__ import annotations

import queue
import re
import signal
import subprocess
import sys
import threading

from octavo.core.errors import OctavoError
from octavo.engine.process_memory import peak_resident_bytes_of

READY = re.compile(r"^ready: (?P<name>.+) at (?P<url>\S+)/v1 ")
START_LIMIT_SECONDS = 300.0
STOP_LIMIT_SECONDS = 15.0


class LocalServer:
    """Starts `octavo serve MODEL OPTIONS` on a free port; `url` and `name` are known inside the block."""

    def __init__(self, model: str, options: list[str]) -> None:
        self._command = [sys.executable, "-m", "octavo.cli.main", "serve", model, "--port", "0", *options]

    def __enter__(self) -> LocalServer:
        self._process = subprocess.Popen(self._command, stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self._news: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self.name, self.url = self._wait_until_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def peak_rss_bytes(self) -> int | None:
        """The most memory the server has held so far; None where the system does not say."""
        return peak_resident_bytes_of(self._process.pid)

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.lines.append(line.rstrip())
            self._news.put(line)
        self._news.put(None)

    def _wait_until_ready(self) -> tuple[str, str]:
        while True:
            try:
                line = self._news.get(timeout=START_LIMIT_SECONDS)
            except queue.Empty:
                line = None
            if line is None:
                raise OctavoError("the server did not start: " + " | ".join(self.lines[-3:] or ["it said nothing"]))
            if found := READY.match(line):
                return found["name"], found["url"]
