"""The request bodies that are honoured, and what they mean as `SamplingParams`.

Names and defaults follow the OpenAI API; the fields below "vLLM's extensions" follow vLLM. Types are strict: `"5"`
is no number. Anything else a body may hold is settled in `fields.py`.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from octavo.core.errors import InvalidField
from octavo.core.sampling_params import SamplingParams
from octavo.serve.errors import from_exception, invalid

#: The completions API's own default; chat runs up to the context limit.
COMPLETION_MAX_TOKENS = 16

TokenIds = list[int]


class StreamOptions(BaseModel):
    """`include_usage` asks for one last chunk that holds the usage and no choices."""

    model_config = ConfigDict(extra="forbid", strict=True)
    include_usage: bool = False


class GenerationFields(BaseModel):
    """What both endpoints share."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str
    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[str, float] = Field(default_factory=dict)
    seed: int | None = None
    stop: str | list[str] = Field(default_factory=list)
    max_tokens: int | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    # vLLM's extensions
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: TokenIds = Field(default_factory=list)
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    priority: int = 0

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def _check_stream_options(self) -> None:
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options", "is only allowed with stream: true")

    def _sampling(self, renamed: dict[str, str] | None = None, **settings: Any) -> SamplingParams:
        self._check_stream_options()
        try:
            return SamplingParams(
                n=self.n,
                temperature=self.temperature,
                top_p=self.top_p,
                top_k=self.top_k,
                min_p=self.min_p,
                presence_penalty=self.presence_penalty,
                frequency_penalty=self.frequency_penalty,
                repetition_penalty=self.repetition_penalty,
                logit_bias=self.logit_bias,  # type: ignore[arg-type]  # keys are checked and read there
                seed=self.seed,
                stop=self.stop,
                stop_token_ids=self.stop_token_ids,
                include_stop_str_in_output=self.include_stop_str_in_output,
                ignore_eos=self.ignore_eos,
                min_tokens=self.min_tokens,
                skip_special_tokens=self.skip_special_tokens,
                **settings,
            )
        except InvalidField as error:
            raise from_exception(error, renamed) from None


class TextPart(BaseModel):
    """A piece of a message. Pictures, sound and files are refused by their `type`."""

    model_config = ConfigDict(extra="forbid", strict=True)
    type: Literal["text"]
    text: str


class FunctionCall(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    name: str
    arguments: str


class ToolCall(BaseModel):
    """A call the model made in an earlier turn."""

    model_config = ConfigDict(extra="forbid", strict=True)
    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(BaseModel):
    """One turn. `content` is text, a list of text parts, or null in an assistant's turn that only calls tools."""

    model_config = ConfigDict(extra="forbid", strict=True)
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    refusal: None = None

    @field_validator("content", mode="before")
    @classmethod
    def _text_parts_only(cls, content: Any) -> Any:
        for part in content if isinstance(content, list) else []:
            if isinstance(part, dict) and part.get("type") != "text":
                raise ValueError(f"a part of type {part.get('type')!r} is not supported; only text parts are")
        return content

    def as_dict(self) -> dict[str, Any]:
        """The message as chat templates see it; `content` is always there."""
        return {**self.model_dump(exclude_none=True), "content": self.model_dump()["content"]}


class ChatCompletionRequest(GenerationFields):
    """Body of POST /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    # vLLM's extensions
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)

    def sampling_params(self) -> SamplingParams:
        """Raises `APIError` 400 naming the field as the user wrote it."""
        if self.top_logprobs is not None and not self.logprobs:
            raise invalid("top_logprobs", "is only allowed with logprobs: true")
        max_tokens = self.max_tokens
        renamed = {"logprobs": "top_logprobs"}
        if self.max_completion_tokens is not None:
            if max_tokens not in (None, self.max_completion_tokens):
                raise invalid("max_completion_tokens", f"contradicts max_tokens ({max_tokens}); give one of them")
            max_tokens = self.max_completion_tokens
            renamed["max_tokens"] = "max_completion_tokens"
        for name in sorted({"messages", "tools", "add_generation_prompt"} & self.chat_template_kwargs.keys()):
            raise invalid(f"chat_template_kwargs.{name}", "is a field of the body itself")
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        return self._sampling(renamed, max_tokens=max_tokens, logprobs=logprobs)

    def checked_messages(self) -> list[dict[str, Any]]:
        """The messages for the chat template. Raises `APIError` 400 where a turn says nothing."""
        if not self.messages:
            raise invalid("messages", "must hold at least one message")
        for index, message in enumerate(self.messages):
            if message.content is None and not (message.role == "assistant" and message.tool_calls):
                raise invalid(f"messages[{index}].content", "may be null only in an assistant turn with tool_calls")
        return [message.as_dict() for message in self.messages]


class CompletionRequest(GenerationFields):
    """Body of POST /v1/completions. Several prompts give choices in the order of the prompts, `n` for each."""

    prompt: str | list[str] | TokenIds | list[TokenIds]
    echo: bool = False
    logprobs: int | None = None
    # vLLM's extensions
    add_special_tokens: bool = True

    def sampling_params(self) -> SamplingParams:
        """With `echo` the prompt's log-probabilities are asked for too (and with `max_tokens` 0 nothing else is).
        Raises `APIError` 400."""
        max_tokens = COMPLETION_MAX_TOKENS if self.max_tokens is None else self.max_tokens
        prompt_logprobs = self.logprobs if self.echo else None
        if self.echo and max_tokens == 0:
            prompt_logprobs = self.logprobs or 0
        return self._sampling(max_tokens=max_tokens, logprobs=self.logprobs, prompt_logprobs=prompt_logprobs)

    def prompts(self) -> list[str | TokenIds]:
        """One entry per prompt, texts or token ids. Raises `APIError` 400 naming an empty one."""
        several = isinstance(self.prompt, list) and not (self.prompt and isinstance(self.prompt[0], int))
        prompts: list[Any] = self.prompt if several else [self.prompt]  # type: ignore[assignment]
        if not prompts:
            raise invalid("prompt", "must hold at least one prompt")
        for index, prompt in enumerate(prompts):
            if prompt == []:
                raise invalid(f"prompt[{index}]" if several else "prompt", "must hold at least one token")
        return prompts
