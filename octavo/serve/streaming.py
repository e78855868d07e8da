"""Deltas on their way to a client: merged from several requests, sent as server-sent events, ended when it leaves.

client leaves -> `http.disconnect` -> the task that reads the deltas is cancelled -> the generators are
closed -> the engine aborts the requests and frees their blocks
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from octavo.serve.errors import from_exception

logger = logging.getLogger("octavo.serve")

Item = TypeVar("Item")
DONE = b"data: [DONE]\n\n"


class ClientLeft(Exception):
    """The client closed its connection; nobody is there to answer."""


def encode(value: Any) -> bytes:
    """Strict JSON: NaN or infinity raise instead of reaching a client."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def event(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + encode(value) + b"\n\n"


async def merge(streams: Sequence[AsyncIterator[Item]]) -> AsyncGenerator[tuple[int, Item], None]:
    """The items of all streams as they come, each with its stream's number. The first exception ends all reading."""
    if len(streams) == 1:
        async for item in streams[0]:
            yield 0, item
        return
    arrivals: asyncio.Queue[tuple[int, Item | None, Exception | None]] = asyncio.Queue()

    async def read(number: int, stream: AsyncIterator[Item]) -> None:
        try:
            async for item in stream:
                arrivals.put_nowait((number, item, None))
            arrivals.put_nowait((number, None, None))
        except Exception as error:
            arrivals.put_nowait((number, None, error))

    readers = [asyncio.create_task(read(number, stream)) for number, stream in enumerate(streams)]
    try:
        num_running = len(readers)
        while num_running:
            number, arrived, error = await arrivals.get()
            if error is not None:
                raise error
            if arrived is None:
                num_running -= 1
            else:
                yield number, arrived
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


async def unless_client_leaves(receive: Receive, work: Coroutine[Any, Any, Item]) -> Item:
    """Await `work`; when the client closes the connection first, cancel it, wait for its end and raise `ClientLeft`.

    The request's body must have been read already.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_client_leaves(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientLeft
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _client_leaves(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Server-sent events from `events` (each already encoded), then `[DONE]`; `on_end` is called however it ends.

    An error once the stream has begun is sent as one event that holds an error object.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], on_end: Callable[[], None]) -> None:
        self.events = events
        self.on_end = on_end
        self.status_code = 200
        self.background = None
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with suppress(ClientLeft):
                await unless_client_leaves(receive, self._send_all(send))
        finally:
            self.on_end()

    async def _send_all(self, send: Send) -> None:
        async with aclosing(self.events):
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            try:
                async for data in self.events:
                    await send({"type": "http.response.body", "body": data, "more_body": True})
            except Exception as error:
                answer = from_exception(error)
                if answer.status >= 500:
                    logger.exception("a stream ended with an error")
                await send({"type": "http.response.body", "body": event(answer.body()), "more_body": True})
            await send({"type": "http.response.body", "body": DONE, "more_body": False})
