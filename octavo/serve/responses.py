"""The shapes of the answers, as typed dictionaries: the code that builds them is checked by mypy, and
`/openapi.json` shows them as they are."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

Finish = Literal["stop", "length", "abort"]


class PromptTokensDetails(TypedDict):
    cached_tokens: int


class Usage(TypedDict):
    """`cached_tokens` are the prompt tokens whose keys and values were found in the prefix cache."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class TopLogprob(TypedDict):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """`token` may show U+FFFD where a token is half a character; `bytes` are exact."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(TypedDict):
    content: list[TokenLogprob]


class CompletionLogprobs(TypedDict):
    """`tokens` joined are the text: a token that ends inside a character has an empty text, the token that completes
    it the whole character. `text_offset` counts characters from the start of `text`."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class AssistantMessage(TypedDict):
    role: Literal["assistant"]
    content: str


class ChatChoice(TypedDict):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish
    stop_reason: int | str | None


class ChatCompletion(TypedDict):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class ChatDelta(TypedDict):
    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str]


class ChatChunkChoice(TypedDict):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: Finish | None
    stop_reason: NotRequired[int | str | None]


class ChatCompletionChunk(TypedDict):
    """`usage` is there only if `stream_options.include_usage` asked for it: null but in the last chunk."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: NotRequired[Usage | None]


class CompletionChoice(TypedDict):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Finish | None
    stop_reason: NotRequired[int | str | None]


class Completion(TypedDict):
    """Also the shape of a stream's chunks, where `usage` is as in `ChatCompletionChunk`."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: NotRequired[Usage | None]


class ModelCard(TypedDict):
    """`quality` is what `octavo quantize` measured on the exported file (octavo.json); null where nobody did."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    max_model_len: int
    quality: dict[str, Any] | None


class ModelList(TypedDict):
    object: Literal["list"]
    data: list[ModelCard]


class ErrorObject(TypedDict):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(TypedDict):
    error: ErrorObject


class Health(TypedDict):
    status: Literal["ok", "draining"]


class Version(TypedDict):
    version: str
