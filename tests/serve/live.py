"""A real server on a loopback port, in a thread of the test process, and clients for it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import openai
import uvicorn

from octavo.engine.async_engine import AsyncEngine
from octavo.serve.app import create_app
from octavo.serve.model_info import ModelInfo
from octavo.serve.server import bind, url_of

MODEL = "tiny"


class LiveServer:
    """A running server: its engine, its URL, an `openai` client and a plain one."""

    def __init__(self, engine: AsyncEngine, url: str, api_key: str | None) -> None:
        self.engine = engine
        self.url = url
        self.client = openai.OpenAI(base_url=f"{url}/v1", api_key=api_key or "none", max_retries=0, timeout=60)
        self.http = httpx.Client(base_url=url, timeout=60)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(path, json={"model": MODEL, **body})

    def chat(self, content: Any = "hi", **options: Any) -> Any:
        return self.client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": content}], **options
        )

    def complete(self, prompt: Any = "hi", **options: Any) -> Any:
        return self.client.completions.create(model=MODEL, prompt=prompt, **options)

    def raw_events(self, path: str, **body: Any) -> list[Any]:
        """The parsed events of a stream; `[DONE]` must be the last line and is left out."""
        response = self.post(path, stream=True, **body)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.text.split("\n\n") if line]
        assert lines.pop() == "data: [DONE]"
        return [json.loads(line.removeprefix("data: "), parse_constant=_refuse) for line in lines]

    def metrics(self) -> dict[str, float]:
        """Sample name with labels -> value."""
        lines = self.http.get("/metrics").text.splitlines()
        return {key: float(value) for key, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}

    def wait_until_idle(self, seconds: float = 5.0) -> None:
        """Nothing runs or waits, no block is held."""
        wait_for(lambda: self._idle(), seconds, f"still busy: {self.engine.stats}")

    def _idle(self) -> bool:
        stats = self.engine.stats
        return stats.num_running == stats.num_waiting == stats.num_used_blocks == 0


@contextmanager
def serving(
    engine: AsyncEngine, api_key: str | None = None, quality: dict[str, Any] | None = None
) -> Iterator[LiveServer]:
    """Serve `engine` as model `tiny` until the block ends."""
    info = ModelInfo(MODEL, "/nowhere/tiny", engine.max_model_len, quality)
    listening = bind("127.0.0.1", 0)
    config = uvicorn.Config(create_app(engine, info, api_key), log_level="warning", timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    wait_for(lambda: server.started, 20, "the server did not start")
    live = LiveServer(engine, url_of(listening), api_key)
    try:
        yield live
    finally:
        live.http.close()
        live.client.close()
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


def wait_for(condition: Callable[[], bool], seconds: float, message: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, message
        time.sleep(0.01)


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")
