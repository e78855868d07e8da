"""The request bodies that are honoured, and what they mean as `SamplingParams`.

Names and defaults follow the OpenAI API; the fields below "vLLM's extensions" follow vLLM. Types are strict: `"5"`
is no number. Anything else a body may hold is settled in `fields.py`.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

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

    @property
    def renamed(self) -> dict[str, str]:
        """Names that errors of lower rooms use -> names the user wrote."""
        return {"text": "prompt"}

    def _sampling(self, **settings: Any) -> SamplingParams:
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
            raise from_exception(error, self.renamed) from None


#: What OpenAPI says of a message; `octavo.text` checks it, for every door alike.
_MESSAGE_SCHEMA = {
    "type": "object",
    "required": ["role"],
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
        "content": {
            "description": "Text, or a list of text parts; null only in an assistant's turn.",
            "anyOf": [
                {"type": "string"},
                {"type": "null"},
                {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["type", "text"],
                        "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
                    },
                },
            ],
        },
        "name": {"type": "string"},
        "tool_calls": {"type": "array", "items": {"type": "object"}},
        "tool_call_id": {"type": "string"},
    },
}
Message = Annotated[dict[str, Any], WithJsonSchema(_MESSAGE_SCHEMA)]


class ChatCompletionRequest(GenerationFields):
    """Body of POST /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    # vLLM's extensions
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)

    @property
    def renamed(self) -> dict[str, str]:
        names = {"text": "messages", "prompt": "messages", "logprobs": "top_logprobs"}
        return names if self.max_completion_tokens is None else {**names, "max_tokens": "max_completion_tokens"}

    def sampling_params(self) -> SamplingParams:
        """Raises `APIError` 400 naming the field as the user wrote it."""
        if self.top_logprobs is not None and not self.logprobs:
            raise invalid("top_logprobs", "is only allowed with logprobs: true")
        max_tokens = self.max_tokens
        if self.max_completion_tokens is not None:
            if max_tokens not in (None, self.max_completion_tokens):
                raise invalid("max_completion_tokens", f"contradicts max_tokens ({max_tokens}); give one of them")
            max_tokens = self.max_completion_tokens
        for name in sorted({"messages", "tools", "add_generation_prompt"} & self.chat_template_kwargs.keys()):
            raise invalid(f"chat_template_kwargs.{name}", "is a field of the body itself")
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        return self._sampling(max_tokens=max_tokens, logprobs=logprobs)


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
