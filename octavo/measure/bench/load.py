"""Open-loop load: every request leaves at its time, however many are unanswered."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from octavo.core.errors import OctavoError
from octavo.measure.bench.http_stream import Endpoint
from octavo.measure.bench.schedule import PlannedRequest

#: Told (sent, answered, failed, in all), now and then.
Progress = Callable[[int, int, int, int], None]
PROGRESS_SECONDS = 1.0


@dataclass(slots=True)
class RequestRecord:
    """What became of one request. Seconds from the start of the load; `token_seconds` has one entry for each event that
    brought text, `error` says why it has no whole answer.

    Times count from `scheduled`, not from when the client came to sending: lateness of the client is no excuse.
    """

    scheduled: float
    num_prompt_tokens: int
    sent: float = 0.0
    token_seconds: list[float] = field(default_factory=list)
    finished: float = 0.0
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    error: str | None = None

    @property
    def ttft(self) -> float:
        return self.token_seconds[0] - self.scheduled

    @property
    def tpot(self) -> float | None:
        """Seconds for each output token after the first; None for an answer of one token."""
        if self.num_output_tokens < 2:
            return None
        return (self.finished - self.token_seconds[0]) / (self.num_output_tokens - 1)

    @property
    def end_to_end(self) -> float:
        return self.finished - self.scheduled

    @property
    def inter_token(self) -> list[float]:
        return [later - earlier for earlier, later in itertools.pairwise(self.token_seconds)]


class Load:
    """Requests against `endpoint`; what is unanswered `timeout_seconds` after the last arrival is given up."""

    def __init__(
        self, endpoint: Endpoint, model: str, timeout_seconds: float, progress: Progress | None = None
    ) -> None:
        self._endpoint, self._model, self._timeout = endpoint, model, timeout_seconds
        self._progress = progress
        self._records: list[RequestRecord] = []

    async def run(self, requests: Sequence[PlannedRequest]) -> list[RequestRecord]:
        """One record a request, in order."""
        self._records = [RequestRecord(each.at_seconds, len(each.prompt_token_ids)) for each in requests]
        self._started = time.perf_counter()
        reporting = asyncio.create_task(self._report())
        tasks = [
            asyncio.create_task(self._send(planned, record))
            for planned, record in zip(requests, self._records, strict=True)
        ]
        try:
            last = max((each.at_seconds for each in requests), default=0.0)
            await asyncio.wait(tasks, timeout=last + self._timeout)
        finally:
            for task in (*tasks, reporting):
                task.cancel()
            await asyncio.gather(*tasks, reporting, return_exceptions=True)
        return self._records

    def _now(self) -> float:
        return time.perf_counter() - self._started

    async def _send(self, planned: PlannedRequest, record: RequestRecord) -> None:
        record.error = "no answer within the time limit"
        await asyncio.sleep(planned.at_seconds - self._now())
        record.sent = self._now()
        try:
            async with aclosing(self._endpoint.events("/v1/completions", self._body(planned))) as events:
                async for event in events:
                    self._note(event, record)
            record.finished = self._now()
            record.error = self._what_is_wrong(planned, record)
        except (OSError, OctavoError, ValueError, asyncio.IncompleteReadError) as error:
            record.error = f"{type(error).__name__}: {error}"

    def _body(self, planned: PlannedRequest) -> dict[str, Any]:
        return {
            "model": self._model,
            "prompt": planned.prompt_token_ids,
            "max_tokens": planned.output_len,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def _note(self, event: dict[str, Any], record: RequestRecord) -> None:
        if "error" in event:
            raise OctavoError(str(event["error"]))
        if event.get("choices"):
            record.token_seconds.append(self._now())
        usage = event.get("usage")
        if usage:
            record.num_output_tokens = usage["completion_tokens"]
            record.num_cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0

    @staticmethod
    def _what_is_wrong(planned: PlannedRequest, record: RequestRecord) -> str | None:
        if not record.token_seconds:
            return "the stream brought no token"
        if record.num_output_tokens != planned.output_len:
            return f"{planned.output_len} tokens were asked for, {record.num_output_tokens} came"
        return None

    async def _report(self) -> None:
        while self._progress is not None:
            await asyncio.sleep(PROGRESS_SECONDS)
            sent = sum(each.sent > 0 for each in self._records)
            done = [each for each in self._records if each.finished > 0]
            failed = sum(each.error is not None for each in done)
            self._progress(sent, len(done) - failed, failed, len(self._records))
