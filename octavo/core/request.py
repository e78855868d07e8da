"""A request: what a user wants continued, and how."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import StrEnum

from octavo.core.sampling_params import SamplingParams


class FinishReason(StrEnum):
    """Why a sequence ended. `STOP` and `LENGTH` are the API's own words."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(slots=True)
class Request:
    """One prompt and its sampling parameters; `sampling.n` sequences grow from it.

    `prompt` is the text if the user gave text (kept for the result only), `priority` orders admission and
    preemption (lower runs first, as in vLLM), `arrival_seconds` is `time.monotonic()` at entry.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    prompt: str | None = None
    priority: int = 0
    arrival_seconds: float = field(default_factory=time.monotonic)
