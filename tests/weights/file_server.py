"""A small web server on loopback that can misbehave: the ground under the stand-ins for an index and a hub."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Reply:
    """What a path answers with. `kind` is the content type."""

    body: bytes
    kind: str = "application/octet-stream"
    headers: dict[str, str] = field(default_factory=dict)
    status: int = 200


@dataclass
class FileServer:
    """Serves `replies` by path; every request is kept in `requests` as (method, path, Range header).

    `cut_after` ends each transfer of a large file after so many bytes, `cuts` times; `seconds_per_chunk` slows
    transfers down; `honours_ranges` off always sends the whole; `authorization` is the
    header demanded, `authorizations` those that came.
    """

    replies: dict[str, Reply] = field(default_factory=dict)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    cut_after: int | None = None
    cuts: int = 0
    seconds_per_chunk: float = 0.0
    honours_ranges: bool = True
    authorization: str | None = None
    authorizations: set[str | None] = field(default_factory=set)
    url: str = ""

    def ranges_of(self, path: str) -> list[str | None]:
        """The Range headers with which a path was fetched."""
        return [wanted for method, asked, wanted in self.requests if method == "GET" and asked == path]


_CHUNK_BYTES = 1 << 16


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    site: FileServer

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, *arguments: object) -> None:
        pass

    def _answer(self, with_body: bool) -> None:
        path, wanted = self.path.partition("?")[0], self.headers.get("Range")
        self.site.requests.append((self.command, path, wanted))
        self.site.authorizations.add(self.headers.get("Authorization"))
        reply = self.site.replies.get(path, Reply(b"not here", "text/plain", status=404))
        if self.site.authorization and self.headers.get("Authorization") != self.site.authorization:
            reply = Reply(b"who are you?", "text/plain", status=401)
        body, status, start = reply.body, reply.status, 0
        if wanted and self.site.honours_ranges and status == 200:
            start = int(wanted.removeprefix("bytes=").partition("-")[0])
            body, status = (body[start:], 206) if start < len(reply.body) else (b"", 416)
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{len(reply.body) - 1}/{len(reply.body)}")
        headers = {"Content-Type": reply.kind, "Content-Length": str(len(body)), **reply.headers}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self._send(body)

    def _send(self, body: bytes) -> None:
        site = self.site
        if site.cuts and site.cut_after is not None and len(body) > site.cut_after:
            site.cuts -= 1
            body = body[: site.cut_after]
            self.close_connection = True
        try:
            for start in range(0, len(body), _CHUNK_BYTES):
                self.wfile.write(body[start : start + _CHUNK_BYTES])
                time.sleep(site.seconds_per_chunk)
        except ConnectionError:
            self.close_connection = True


@contextmanager
def serving(site: FileServer) -> Iterator[FileServer]:
    """`site` on a free port of 127.0.0.1; its `url` is set."""
    handler = type("Handler", (_Handler,), {"site": site})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    site.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
