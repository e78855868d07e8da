"""The process side of serving: the socket, signals, and a drain before the end.

first SIGTERM or SIGINT   new requests get 503, running ones finish (at most `drain_seconds`), exit code 0
second                    everything ends at once
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from octavo.core.errors import InvalidField
from octavo.serve.context import ServerContext

logger = logging.getLogger("octavo.serve")

#: How long connections may take to send what the engine has finished.
_FLUSH_SECONDS = 5


class DrainingServer(uvicorn.Server):
    """uvicorn, with our own way to stop. `on_ready` is called with the URL once requests are accepted."""

    def __init__(self, app: FastAPI, listening: socket.socket, drain_seconds: float, on_ready: Callable[[str], None]):
        super().__init__(
            uvicorn.Config(app, log_level="warning", lifespan="on", timeout_graceful_shutdown=_FLUSH_SECONDS)
        )
        self._context: ServerContext = app.state.context
        self._listening = listening
        self._drain_seconds = drain_seconds
        self._on_ready = on_ready
        self._draining: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready(url_of(self._listening))

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn would close the socket and raise the signal again; here a drained server ends with code 0."""
        loop = asyncio.get_running_loop()
        handled = (signal.SIGTERM, signal.SIGINT)
        for number in handled:
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number in handled:
                loop.remove_signal_handler(number)

    def stop(self) -> None:
        """What each signal does."""
        if self._draining is not None:
            self.force_exit = self.should_exit = True
            return
        self._context.draining = True
        logger.warning("draining: running requests may take %g s more", self._drain_seconds)
        self._draining = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        try:
            await self._context.engine.drain_and_stop(self._drain_seconds)
        finally:
            self.should_exit = True


def run_server(app: FastAPI, listening: socket.socket, drain_seconds: float, on_ready: Callable[[str], None]) -> None:
    """Serve `app` on `listening` (bound, see `bind`) until a signal; returns after the drain."""
    DrainingServer(app, listening, drain_seconds, on_ready).run(sockets=[listening])


def bind(host: str, port: int) -> socket.socket:
    """A bound TCP socket that does not listen yet: a taken port is known before a model is loaded.

    Port 0 takes a free one. Raises `InvalidField` naming `host` or `port`.
    """
    if not 0 <= port <= 65535:
        raise InvalidField("port", port, "must be from 0 (any free one) to 65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError) as error:
        raise InvalidField("host", host, f"is not an address of this machine ({error})") from None
    listening = socket.socket(family, kind, protocol)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(address)
    except OSError as error:
        listening.close()
        raise InvalidField("port", port, f"cannot be used on {host}: {error.strerror}") from None
    return listening


def url_of(listening: socket.socket) -> str:
    """`http://127.0.0.1:8000`"""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(listening: socket.socket) -> bool:
    """Whether only this machine can reach the socket."""
    return ipaddress.ip_address(listening.getsockname()[0]).is_loopback
