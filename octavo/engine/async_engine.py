"""The engine for servers: one background thread steps, any number of asyncio tasks read.

    task --- open(request) ---> commands ---> engine thread: add, step, step ...
    task <--- deltas ---------- one wake-up of the event loop per step

The thread sleeps while there is nothing to do and wakes at once when a command comes.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from typing import Any

from octavo.core.errors import OctavoError
from octavo.core.outputs import OutputDelta
from octavo.core.request import Request
from octavo.engine.engine import Engine
from octavo.engine.stats import EngineStats
from octavo.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

#: Seconds without work after which the memory's bookkeeping is checked once.
IDLE_CHECK_SECONDS = 5.0


class EngineStopped(OctavoError):
    """The engine is draining or has stopped; it takes no new requests."""


class DeltaStream:
    """The news of one admitted request, for one event loop. `close()` aborts what has not ended."""

    def __init__(self, owner: AsyncEngine, request: Request) -> None:
        self.request_id = request.request_id
        self.loop = asyncio.get_running_loop()
        self.num_unfinished = request.sampling.n
        self._owner = owner
        self._deltas: asyncio.Queue[OutputDelta] = asyncio.Queue()

    def __aiter__(self) -> DeltaStream:
        return self

    async def __anext__(self) -> OutputDelta:
        if not self.num_unfinished:
            raise StopAsyncIteration
        delta = await self._deltas.get()
        if delta.finish_reason is not None:
            self.num_unfinished -= 1
        return delta

    def put(self, delta: OutputDelta) -> None:
        """On the stream's own loop only."""
        self._deltas.put_nowait(delta)

    def close(self) -> None:
        """The reader leaves: an unfinished request ends within one step. Never blocks."""
        if self.num_unfinished:
            self.num_unfinished = 0
            self._owner.abort(self.request_id)


class AsyncEngine:
    """Runs an `Engine` in one thread. All methods are for asyncio tasks; the attributes may be read from any thread."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._commands: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._streams: dict[str, DeltaStream] = {}  # touched by the engine's thread only
        self._draining = False
        self._stopping = False
        self._thread: threading.Thread | None = None

    @property
    def stats(self) -> EngineStats:
        """A snapshot of the counters. They are counted before the news of a step is told: who has an answer finds it
        counted."""
        return self.engine.stats

    @property
    def tokenizer(self) -> Tokenizer:
        return self.engine.tokenizer

    @property
    def max_model_len(self) -> int:
        return self.engine.max_model_len

    def start(self) -> None:
        """Start the thread; calling it again does nothing. `open` and `generate` start it themselves."""
        with self._wake:
            if self._thread is None and not self._stopping:
                self._thread = threading.Thread(target=self._run, name="octavo-engine", daemon=True)
                self._thread.start()

    async def open(self, request: Request) -> DeltaStream:
        """Admit a request. Raises `InvalidField`, `CapacityError` or `EngineStopped` before any delta.

        The caller must iterate to the end or `close()` the stream.
        """
        if self._draining:
            raise EngineStopped("the engine is shutting down and takes no new requests")
        self.start()
        stream = DeltaStream(self, request)
        try:
            await self._call(lambda: self._add(request, stream))
        except asyncio.CancelledError:
            self.abort(request.request_id)
            raise
        return stream

    async def generate(self, request: Request) -> AsyncGenerator[OutputDelta, None]:
        """The request's deltas as they come. Leaving early (break and aclose, cancellation) aborts the request and
        frees its blocks within one step. Raises like `open` at the first step of the iteration."""
        stream = await self.open(request)
        try:
            async for delta in stream:
                yield delta
        finally:
            stream.close()

    def abort(self, request_id: str) -> None:
        """End a request within one step. Does not wait; unknown ids are no error."""
        self._submit(lambda: self.engine.abort(request_id))

    async def drain_and_stop(self, timeout: float | None = None) -> bool:
        """Take no new requests, let the running ones end, stop the thread. After `timeout` seconds the rest is
        aborted. Returns whether everything ended by itself."""
        self._draining = True
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._has_work and (deadline is None or time.monotonic() < deadline) and self._thread is not None:
            await asyncio.sleep(0.02)
        drained = not self._has_work
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
        return drained

    # -- any thread ----------------------------------------------------------------------------------------------

    @property
    def _has_work(self) -> bool:
        return bool(self._commands) or self.engine.has_work

    def _submit(self, command: Callable[[], None]) -> None:
        with self._wake:
            self._commands.append(command)
            self._wake.notify()

    async def _call(self, action: Callable[[], Any]) -> Any:
        """Run `action` on the engine's thread between two steps; its result or exception."""
        future: Future[Any] = Future()

        def command() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(action())
            except BaseException as error:
                future.set_exception(error)

        self._submit(command)
        return await asyncio.wrap_future(future)

    # -- the engine's thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        while self._wait_for_work():
            try:
                while self._commands:
                    self._commands.popleft()()
                self._publish(self.engine.step() if self.engine.has_work else [])
            except Exception:
                log.exception("the engine's loop failed; it goes on")
        for request_id in list(self._streams):
            self.engine.abort(request_id)
        self._publish(self.engine.step() if self.engine.has_work else [])
        while self._commands:
            self._commands.popleft()()

    def _wait_for_work(self) -> bool:
        """Sleep until there is something to do; False when the thread shall end."""
        with self._wake:
            if not self._commands and not self.engine.has_work and not self._stopping:
                self._wake.wait(IDLE_CHECK_SECONDS)
                if not self._commands and not self._stopping:
                    self.engine.check_integrity()
                    while not self._commands and not self._stopping:
                        self._wake.wait()
            return not self._stopping

    def _add(self, request: Request, stream: DeltaStream) -> None:
        if self._stopping:
            raise EngineStopped("the engine has stopped")
        self.engine.add(request)
        self._streams[request.request_id] = stream

    def _publish(self, deltas: list[OutputDelta]) -> None:
        """Hand each delta to its stream; one wake-up per event loop."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[DeltaStream, OutputDelta]]] = defaultdict(list)
        for delta in deltas:
            stream = self._streams.get(delta.request_id)
            if stream is not None:
                by_loop[stream.loop].append((stream, delta))
        for loop, news in by_loop.items():
            try:
                loop.call_soon_threadsafe(_deliver, news)
            except RuntimeError:  # the loop is closed: nobody is left to read
                for stream, _ in news:
                    self.engine.abort(stream.request_id)
        for delta in deltas:
            if delta.finish_reason is not None and not self.engine.is_running(delta.request_id):
                self._streams.pop(delta.request_id, None)


def _deliver(news: list[tuple[DeltaStream, OutputDelta]]) -> None:
    for stream, delta in news:
        stream.put(delta)
