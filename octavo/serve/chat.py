"""POST /v1/chat/completions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from octavo.core.outputs import OutputDelta
from octavo.core.request import FinishReason, Request
from octavo.serve.context import Deltas, ServerContext, UsageCounter, new_id, now_unix
from octavo.serve.logprobs import ShownToken, ShownTokens, chat_logprobs
from octavo.serve.protocol import ChatCompletionRequest
from octavo.serve.responses import (
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatDelta,
    ChatLogprobs,
)
from octavo.serve.streaming import event


@dataclass(slots=True)
class _Choice:
    """One answer as far as it has come."""

    trace: ShownTokens | None
    texts: list[str] = field(default_factory=list)
    tokens: list[ShownToken] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


class ChatCall:
    """One call: the request for the engine, and the answer in either form. Raises `APIError` 400 when made."""

    def __init__(self, context: ServerContext, body: ChatCompletionRequest, prompt_token_ids: list[int]) -> None:
        self._context = context
        self._body = body
        self._sampling = body.sampling_params()
        self._id = new_id("chatcmpl")
        self._created = now_unix()
        self._usage = UsageCounter()
        self.requests = [Request(self._id, prompt_token_ids, self._sampling, priority=body.priority)]

    @classmethod
    async def make(cls, context: ServerContext, body: ChatCompletionRequest) -> ChatCall:
        """Render and tokenize off the event loop, so that a long prompt does not hold up other streams."""
        body.sampling_params()  # refuses before the template runs
        token_ids = await asyncio.to_thread(
            context.tokenizer.encode_chat,
            body.messages,
            add_generation_prompt=body.add_generation_prompt,
            **body.chat_template_kwargs,
        )
        return cls(context, body, token_ids)

    async def whole(self, deltas: Deltas) -> ChatCompletion:
        """All choices, once every one has ended."""
        choices = [_Choice(self._trace()) for _ in range(self._sampling.n)]
        async with aclosing(deltas):
            async for number, delta in deltas:
                self._usage.count(number, delta)
                choice = choices[delta.index]
                choice.texts.append(delta.text)
                choice.tokens.extend(choice.trace.push(delta) if choice.trace else [])
                if delta.finish_reason is not None:
                    choice.finish_reason, choice.stop_reason = delta.finish_reason, delta.stop_reason
        return {
            "id": self._id,
            "object": "chat.completion",
            "created": self._created,
            "model": self._body.model,
            "choices": [self._choice(index, choice) for index, choice in enumerate(choices)],
            "usage": self._usage.usage(),
        }

    async def events(self, deltas: Deltas) -> AsyncGenerator[bytes, None]:
        """The role of every choice first, then text as it comes, then the usage if it was asked for."""
        traces = [self._trace() for _ in range(self._sampling.n)]
        async with aclosing(deltas):
            for index in range(self._sampling.n):
                yield event(self._chunk(index, {"role": "assistant", "content": ""}, None))
            async for number, delta in deltas:
                self._usage.count(number, delta)
                trace = traces[delta.index]
                logprobs = self._logprobs(trace.push(delta)) if trace else None
                if delta.text or delta.finish_reason is not None or (logprobs and logprobs["content"]):
                    text: ChatDelta = {"content": delta.text} if delta.text else {}
                    yield event(self._chunk(delta.index, text, logprobs, delta))
        if self._body.include_usage:
            yield event({**self._envelope(), "choices": [], "usage": self._usage.usage()})

    def _trace(self) -> ShownTokens | None:
        if not self._body.logprobs:
            return None
        return ShownTokens(self._context.tokenizer, self._sampling, self.requests[0].prompt_token_ids)

    def _logprobs(self, tokens: list[ShownToken]) -> ChatLogprobs:
        return chat_logprobs(tokens, self._body.top_logprobs or 0)

    def _choice(self, index: int, choice: _Choice) -> ChatChoice:
        assert choice.finish_reason is not None, "the engine ends every sequence with a reason"
        return {
            "index": index,
            "message": {"role": "assistant", "content": "".join(choice.texts)},
            "logprobs": self._logprobs(choice.tokens) if choice.trace else None,
            "finish_reason": choice.finish_reason.value,
            "stop_reason": choice.stop_reason,
        }

    def _chunk(
        self, index: int, delta: ChatDelta, logprobs: ChatLogprobs | None, ending: OutputDelta | None = None
    ) -> ChatCompletionChunk:
        choice: ChatChunkChoice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}
        if ending is not None and ending.finish_reason is not None:
            choice["finish_reason"] = ending.finish_reason.value
            choice["stop_reason"] = ending.stop_reason
        return {**self._envelope(), "choices": [choice]}

    def _envelope(self) -> ChatCompletionChunk:
        envelope: ChatCompletionChunk = {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": self._body.model,
            "choices": [],
        }
        if self._body.include_usage:
            envelope["usage"] = None
        return envelope
