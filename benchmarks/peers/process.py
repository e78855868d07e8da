"""A peer's worker as a process: it speaks JSON lines, and stands still while others are measured."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import time
from contextlib import suppress
from typing import Any

from benchmarks.peers.environment import ROOT
from benchmarks.peers.models import REPOSITORY
from benchmarks.peers.peer import Peer

#: The longest any one command may take.
COMMAND_LIMIT_SECONDS = 900.0
QUIT_LIMIT_SECONDS = 10.0


class PeerFailed(Exception):
    """What a worker answered instead of a result, or how it died."""


class PeerProcess:
    """A worker in a process group of its own. `started` is `time.perf_counter()` right before it was started."""

    def __init__(self, peer: Peer, limit_seconds: float = COMMAND_LIMIT_SECONDS) -> None:
        self.peer = peer
        self._limit_seconds = limit_seconds
        ROOT.mkdir(parents=True, exist_ok=True)
        self.log = ROOT / f"{peer.environment.name}.run.log"
        with self.log.open("w") as log:
            self.started = time.perf_counter()
            self._process = subprocess.Popen(
                [str(peer.environment.python), "-m", f"benchmarks.peers.workers.{peer.worker}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=REPOSITORY,
                env=peer_variables(peer),
                start_new_session=True,
            )
        assert self._process.stdout is not None
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)

    def load(self, **options: Any) -> dict[str, Any]:
        return self._ask({"do": "load", "options": options})["facts"]

    def run(self, prompts: list[list[int]], new_tokens: int) -> tuple[float, list[list[int]]]:
        """(seconds inside the worker, new tokens of each prompt). Raises `PeerFailed` if any output is short."""
        answer = self._ask({"do": "run", "prompts": prompts, "new_tokens": new_tokens})
        lengths = sorted({len(output) for output in answer["outputs"]})
        if len(answer["outputs"]) != len(prompts) or lengths != [new_tokens]:
            raise PeerFailed(f"{self.peer.name}: {new_tokens} new tokens were asked for, it gave {lengths}")
        return answer["seconds"], answer["outputs"]

    def peak_rss_bytes(self) -> int:
        return self._ask({"do": "memory"})["peak_rss_bytes"]

    def pause(self) -> None:
        """Stop every process of the group: one that waits must not take time from one that is measured."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.killpg(self._process.pid, signal.SIGCONT)

    def close(self) -> None:
        """Ask it to end, then end it."""
        if self._process.poll() is None:
            self.resume()
            with suppress(OSError, subprocess.TimeoutExpired):
                self._send({"do": "quit"})
                self._process.wait(QUIT_LIMIT_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._selector.close()

    def __enter__(self) -> PeerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, command: dict[str, Any]) -> dict[str, Any]:
        try:
            self._send(command)
        except OSError:
            raise PeerFailed(self._how_it_died()) from None
        answer = json.loads(self._line())
        if "error" in answer:
            raise PeerFailed(f"{self.peer.name}: {answer['error']}")
        return answer

    def _send(self, command: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()

    def _line(self) -> bytes:
        """The next line of the worker, within the limit."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + self._limit_seconds
        parts: list[bytes] = []
        while not parts or not parts[-1].endswith(b"\n"):
            if not self._selector.select(max(0.0, deadline - time.monotonic())):
                raise PeerFailed(f"{self.peer.name}: no answer within {self._limit_seconds:.0f} s")
            parts.append(os.read(self._process.stdout.fileno(), 1 << 20))
            if not parts[-1]:
                raise PeerFailed(self._how_it_died())
        return b"".join(parts)

    def _how_it_died(self) -> str:
        code = self._process.wait(QUIT_LIMIT_SECONDS)
        lines = self.log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f"{self.peer.name}: {how}: {lines[-1][:300]} (log: {self.log})"


def peer_variables(peer: Peer) -> dict[str, str]:
    """Ours, but for how OpenMP's threads wait: importing Octavo sets that for its own sake, and others shall run as
    they do by themselves."""
    variables = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    return {**variables, **peer.variables}
