"""A small HTTP/1.1 client for what the load needs: one GET, and a POST that answers with server-sent events.

On a CPU the client shares cores with the server it measures, so it does little: one connection a request, bytes to
lines, JSON of the events that come.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from octavo.core.errors import InvalidField, OctavoError

#: The longest header line or chunk size line taken.
_LINE_BYTES = 1 << 16


class ServerRefused(OctavoError):
    """An answer that is no success; the text says the status and what the server wrote."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server's base URL, with or without `/v1` at its end."""

    host: str
    port: int
    path: str = ""
    secure: bool = False
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, url: str, api_key: str | None = None) -> Endpoint:
        """Raises `InvalidField`."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidField("--base-url", url, "write it as http://HOST:PORT")
        secure = parts.scheme == "https"
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        path = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.hostname, parts.port or (443 if secure else 80), path, secure, headers)

    async def get_json(self, path: str) -> Any:
        """Raises `ServerRefused` or `OSError`."""
        async with _Exchange(self, "GET", path, b"") as exchange:
            return json.loads(b"".join([piece async for piece in exchange.pieces()]))

    async def events(self, path: str, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """The JSON of each server-sent event until `[DONE]`. Raises `ServerRefused` or `OSError`."""
        async with _Exchange(self, "POST", path, json.dumps(body).encode()) as exchange:
            buffer = b""
            async with aclosing(exchange.pieces()) as pieces:
                async for piece in pieces:
                    buffer += piece
                    *whole, buffer = buffer.split(b"\n\n")
                    for block in whole:
                        if block == b"data: [DONE]":
                            return
                        if block.startswith(b"data: "):  # the rest are comments that keep a connection open
                            yield json.loads(block.removeprefix(b"data: "))
        raise ServerRefused("the stream ended before [DONE]")


class _Exchange:
    """One request and its answer on a connection of its own."""

    def __init__(self, endpoint: Endpoint, method: str, path: str, body: bytes) -> None:
        self._endpoint = endpoint
        self._head = self._request_head(method, path, len(body))
        self._body = body
        self._answer: dict[str, str] = {}

    async def __aenter__(self) -> _Exchange:
        context = ssl.create_default_context() if self._endpoint.secure else None
        self._reader, self._writer = await asyncio.open_connection(
            self._endpoint.host, self._endpoint.port, ssl=context, limit=_LINE_BYTES
        )
        try:
            self._writer.write(self._head + self._body)
            await self._writer.drain()
            await self._read_head()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """The body as it comes."""
        if self._answer.get("transfer-encoding") == "chunked":
            while size := int(await self._line(), 16):
                yield await self._reader.readexactly(size)
                await self._line()
        elif "content-length" in self._answer:
            yield await self._reader.readexactly(int(self._answer["content-length"]))
        else:
            while piece := await self._reader.read(_LINE_BYTES):
                yield piece

    def _request_head(self, method: str, path: str, num_bytes: int) -> bytes:
        fields = {
            "Host": f"{self._endpoint.host}:{self._endpoint.port}",
            "Connection": "close",
            "Content-Type": "application/json",
            "Content-Length": str(num_bytes),
            **self._endpoint.headers,
        }
        lines = [
            f"{method} {self._endpoint.path}{path} HTTP/1.1",
            *(f"{name}: {text}" for name, text in fields.items()),
        ]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    async def _read_head(self) -> None:
        status = (await self._line()).split(None, 2)
        while line := await self._line():
            name, _, value = line.partition(":")
            self._answer[name.strip().lower()] = value.strip()
        if len(status) < 2 or status[1] != "200":
            text = b"".join([piece async for piece in self.pieces()]).decode(errors="replace")
            raise ServerRefused(f"HTTP {' '.join(status[1:])}: {text[:500]}")

    async def _line(self) -> str:
        line = await self._reader.readline()
        if not line:
            raise ServerRefused("the server closed the connection in the middle of an answer")
        return line.decode("latin-1").strip()
