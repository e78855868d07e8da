"""What every endpoint of one server works with, and the requests behind one HTTP call."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from octavo.core.outputs import OutputDelta
from octavo.core.request import Request
from octavo.engine.async_engine import AsyncEngine, DeltaStream
from octavo.serve.errors import APIError, draining, model_not_found
from octavo.serve.metrics import Metrics, RequestObserver
from octavo.serve.model_info import ModelInfo
from octavo.serve.responses import Usage
from octavo.serve.streaming import merge
from octavo.text.tokenizer import Tokenizer

#: (number of the request within its call, its news)
Deltas = AsyncGenerator[tuple[int, OutputDelta], None]


@dataclass(slots=True)
class ServerContext:
    """One engine, the model it serves and its metrics; `draining` refuses new work with 503."""

    engine: AsyncEngine
    model_info: ModelInfo
    metrics: Metrics
    api_key: str | None = None
    draining: bool = False

    @property
    def tokenizer(self) -> Tokenizer:
        return self.engine.tokenizer

    def check_model(self, name: str) -> None:
        """Raises `APIError` 404 for any other model, 503 while draining."""
        if self.draining:
            raise draining()
        if name != self.model_info.name:
            raise model_not_found(name, self.model_info.name)


class Admission:
    """The requests of one call, admitted by the engine: their news, and the way to end them."""

    def __init__(self, context: ServerContext, requests: list[Request]) -> None:
        self._context = context
        self._requests = requests
        self._streams: list[DeltaStream] = []

    @classmethod
    async def of(cls, context: ServerContext, requests: list[Request]) -> Admission:
        """All requests or none. Raises what the engine refuses with, before any news."""
        admission = cls(context, requests)
        try:
            for request in requests:
                admission._streams.append(await context.engine.open(request))
        except BaseException:
            admission.close()
            raise
        return admission

    async def deltas(self) -> Deltas:
        """The news of all requests as it comes."""
        observers = [RequestObserver(self._context.metrics, request) for request in self._requests]
        async with aclosing(merge(self._streams)) as merged:
            async for number, delta in merged:
                if delta.error is not None:
                    raise APIError(500, delta.error, code="engine_error")
                observers[number].observe(delta)
                yield number, delta

    def close(self) -> None:
        """Abort whatever has not ended; its blocks are free within one step."""
        for stream in self._streams:
            stream.close()


@dataclass(slots=True)
class UsageCounter:
    """Tokens of one HTTP call: each prompt once, every choice's tokens."""

    completion_tokens: int = 0
    _prompt_tokens: dict[int, int] = field(default_factory=dict)
    _cached_tokens: dict[int, int] = field(default_factory=dict)

    def count(self, number: int, delta: OutputDelta) -> None:
        self.completion_tokens += len(delta.token_ids)
        if number not in self._prompt_tokens:
            self._prompt_tokens[number] = delta.num_prompt_tokens
            self._cached_tokens[number] = delta.num_cached_tokens

    def usage(self) -> Usage:
        prompt_tokens = sum(self._prompt_tokens.values())
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(self._cached_tokens.values())},
        }


def new_id(prefix: str) -> str:
    """A fresh id such as `chatcmpl-2f...`."""
    return f"{prefix}-{uuid.uuid4().hex}"


def now_unix() -> int:
    """Whole seconds since 1970, as the API's `created` counts."""
    return int(time.time())
