"""POST /v1/completions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from octavo.core.outputs import OutputDelta, PositionLogprobs
from octavo.core.request import FinishReason, Request
from octavo.serve.context import Deltas, ServerContext, UsageCounter, new_id, now_unix
from octavo.serve.logprobs import ShownToken, ShownTokens, completion_logprobs, prompt_tokens
from octavo.serve.protocol import CompletionRequest
from octavo.serve.responses import Completion, CompletionChoice
from octavo.serve.streaming import event


@dataclass(slots=True)
class _Choice:
    """One answer as far as it has come; `trace` is None where no log-probabilities are wanted."""

    trace: ShownTokens | None
    echoed: bool
    texts: list[str] = field(default_factory=list)
    tokens: list[ShownToken] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


class CompletionCall:
    """One call: a request for each prompt, and the answer in either form. Raises `APIError` 400 when made."""

    def __init__(self, context: ServerContext, body: CompletionRequest, prompts: list[tuple[str | None, list[int]]]):
        self._context = context
        self._body = body
        self._sampling = body.sampling_params()
        self._id = new_id("cmpl")
        self._created = now_unix()
        self._usage = UsageCounter()
        self._prompt_logprobs: dict[int, list[PositionLogprobs | None]] = {}
        self.requests = [
            Request(f"{self._id}-{number}", token_ids, self._sampling, prompt=text, priority=body.priority)
            for number, (text, token_ids) in enumerate(prompts)
        ]
        self._echoes = [self._prompt_text(request) if body.echo else "" for request in self.requests]

    @classmethod
    async def make(cls, context: ServerContext, body: CompletionRequest) -> CompletionCall:
        """Tokenize off the event loop, so that a long prompt does not hold up other streams."""
        body.sampling_params()  # refuses before any work
        return cls(context, body, await asyncio.to_thread(_tokenized, context, body))

    async def whole(self, deltas: Deltas) -> Completion:
        """All choices, once every one has ended."""
        choices = self._choices()
        async with aclosing(deltas):
            async for choice_index, delta, tokens in self._news(deltas, choices):
                choice = choices[choice_index]
                choice.texts.append(delta.text)
                choice.tokens.extend(tokens)
                if delta.finish_reason is not None:
                    choice.finish_reason, choice.stop_reason = delta.finish_reason, delta.stop_reason
        answers = [
            self._choice(index, "".join(choice.texts), choice.tokens, choice) for index, choice in enumerate(choices)
        ]
        return {**self._envelope(answers), "usage": self._usage.usage()}

    async def events(self, deltas: Deltas) -> AsyncGenerator[bytes, None]:
        """Text as it comes, then the usage if it was asked for."""
        choices = self._choices()
        async with aclosing(deltas):
            async for choice_index, delta, tokens in self._news(deltas, choices):
                if delta.text or tokens or delta.finish_reason is not None:
                    yield event(self._chunk([self._choice(choice_index, delta.text, tokens, delta)]))
        if self._body.include_usage:
            yield event({**self._envelope([]), "usage": self._usage.usage()})

    async def _news(
        self, deltas: Deltas, choices: list[_Choice]
    ) -> AsyncGenerator[tuple[int, OutputDelta, list[ShownToken]], None]:
        """(choice, delta, the tokens it shows); an echoed prompt comes as a delta of its own before the first."""
        early: list[tuple[int, OutputDelta]] = []
        async for number, delta in deltas:
            self._usage.count(number, delta)
            if delta.prompt_logprobs is not None:
                self._prompt_logprobs[number] = delta.prompt_logprobs
            early.append((number, delta))
            if self._sampling.prompt_logprobs is not None and number not in self._prompt_logprobs:
                continue  # the sequence that carries them comes next; keep the order
            ready, early = early, []
            for ready_number, ready_delta in ready:
                index = ready_number * self._sampling.n + ready_delta.index
                choice = choices[index]
                if not choice.echoed:
                    choice.echoed = True
                    text = self._echoes[ready_number]
                    yield index, OutputDelta(ready_delta.request_id, index, text), self._echo_tokens(ready_number)
                yield index, ready_delta, choice.trace.push(ready_delta) if choice.trace else []

    def _choices(self) -> list[_Choice]:
        return [
            _Choice(self._trace(request, len(echo)), echoed=not self._body.echo)
            for request, echo in zip(self.requests, self._echoes, strict=True)
            for _ in range(self._sampling.n)
        ]

    def _trace(self, request: Request, first_offset: int) -> ShownTokens | None:
        if self._body.logprobs is None:
            return None
        return ShownTokens(self._context.tokenizer, self._sampling, request.prompt_token_ids, first_offset)

    def _prompt_text(self, request: Request) -> str:
        if request.prompt is not None:
            return request.prompt
        return self._context.tokenizer.decode(request.prompt_token_ids, skip_special_tokens=False)

    def _echo_tokens(self, number: int) -> list[ShownToken]:
        if self._body.logprobs is None:
            return []
        token_ids = self.requests[number].prompt_token_ids
        return prompt_tokens(self._context.tokenizer, token_ids, self._prompt_logprobs[number], self._echoes[number])

    def _choice(
        self, index: int, text: str, tokens: list[ShownToken], ending: _Choice | OutputDelta
    ) -> CompletionChoice:
        choice: CompletionChoice = {
            "index": index,
            "text": text,
            "logprobs": None if self._body.logprobs is None else completion_logprobs(tokens),
            "finish_reason": None,
        }
        if ending.finish_reason is not None:
            choice["finish_reason"] = ending.finish_reason.value
            choice["stop_reason"] = ending.stop_reason
        return choice

    def _chunk(self, choices: list[CompletionChoice]) -> Completion:
        envelope = self._envelope(choices)
        if self._body.include_usage:
            envelope["usage"] = None
        return envelope

    def _envelope(self, choices: list[CompletionChoice]) -> Completion:
        return {
            "id": self._id,
            "object": "text_completion",
            "created": self._created,
            "model": self._body.model,
            "choices": choices,
        }


def _tokenized(context: ServerContext, body: CompletionRequest) -> list[tuple[str | None, list[int]]]:
    """(text or None, token ids) for every prompt."""

    def tokens(prompt: Any) -> tuple[str | None, list[int]]:
        if isinstance(prompt, str):
            return prompt, context.tokenizer.encode(prompt, add_special_tokens=body.add_special_tokens)
        return None, prompt

    return [tokens(prompt) for prompt in body.prompts()]
