"""What comes back: deltas from each step, and whole results with vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.core.request import FinishReason


@dataclass(frozen=True, slots=True)
class Logprob:
    """Natural-log probability of a token after temperature-free softmax; `rank` counts from 1.

    `token_bytes` are the token's exact bytes: `decoded_token` may be half a character.
    """

    logprob: float
    rank: int
    decoded_token: str
    token_bytes: bytes = b""


#: One entry per position: chosen token first, then the most likely ones, keyed by token id.
PositionLogprobs = dict[int, Logprob]


@dataclass(frozen=True, slots=True)
class RequestTiming:
    """Monotonic seconds. `first_scheduled` is None for a request that never ran."""

    arrival: float
    first_scheduled: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    finished: float | None = None
    num_preemptions: int = 0


@dataclass(slots=True)
class OutputDelta:
    """News about one sequence of a request after one step.

    `text` is ready to be shown: never half a character, never a piece of a stop string. `token_ids` and
    `logprobs` have one entry per new token. `finish_reason` is set once, on the last delta of a sequence; `stop_reason`
    is then the stop string or stop token id that ended it, or None (end-of-sequence token, length, abort).
    `ends_with_stop_token` says that the last token id ended the sequence and is not part of the text; `error` says why
    a sequence ended with `ABORT` through no wish of its client. `timing` comes with the last delta.
    """

    request_id: str
    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    timing: RequestTiming | None = None
    ends_with_stop_token: bool = False
    error: str | None = None


@dataclass(slots=True)
class CompletionOutput:
    """One finished or growing answer (vLLM's `CompletionOutput`)."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(slots=True)
class RequestOutput:
    """All answers of one request (vLLM's `RequestOutput`)."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    finished: bool = False
    num_cached_tokens: int = 0
    timing: RequestTiming | None = None
