"""How tokens are chosen: vLLM's names, checked when written."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from octavo.core.errors import InvalidField

#: The most log-probabilities a position may carry (the OpenAI limit).
MAX_LOGPROBS = 20
_SEED_LIMIT = 2**63


@dataclass(slots=True)
class SamplingParams:
    """Sampling parameters of one request.

    temperature 0 is greedy; `top_k` 0 or -1 and `top_p` 1 and `min_p` 0 switch a filter off. Penalties follow
    OpenAI (`presence`, `frequency`: output tokens only) and CTRL (`repetition`: prompt and output, 1 = off).
    `logprobs` asks for the chosen token's and this many most likely ones' log-probabilities, `prompt_logprobs`
    the same for the prompt. `seed` None draws one. Raises `InvalidField` on anything that cannot be honoured.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    stop_strings: tuple[str, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        _whole("n", self.n, 1, 128)
        _number("temperature", self.temperature, 0.0, 100.0)
        _number("top_p", self.top_p, 0.0, 1.0, above=True)
        _whole("top_k", self.top_k, -1, None)
        _number("min_p", self.min_p, 0.0, 1.0)
        _number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _number("repetition_penalty", self.repetition_penalty, 0.0, 100.0, above=True)
        if self.seed is not None:
            _whole("seed", self.seed, -_SEED_LIMIT, _SEED_LIMIT - 1)
        if self.max_tokens is not None:
            _whole("max_tokens", self.max_tokens, 0, None)
        _whole("min_tokens", self.min_tokens, 0, None)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidField("min_tokens", self.min_tokens, f"must not exceed max_tokens ({self.max_tokens})")
        for name, count in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if count is not None:
                _whole(name, count, 0, MAX_LOGPROBS)
        self.stop_strings = _stop_strings(self.stop)
        self.stop_token_ids = list(self.stop_token_ids or [])
        for token in self.stop_token_ids:
            _whole("stop_token_ids", token, 0, None)
        self.logit_bias = _logit_bias(self.logit_bias)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise `InvalidField` for a token id outside `[0, vocab_size)`; only the engine knows the vocabulary."""
        for token in self.logit_bias or {}:
            if not 0 <= token < vocab_size:
                raise InvalidField("logit_bias", token, f"token ids are 0..{vocab_size - 1}")
        for token in self.stop_token_ids or []:
            if token >= vocab_size:
                raise InvalidField("stop_token_ids", token, f"token ids are 0..{vocab_size - 1}")


def _whole(field_name: str, value: Any, low: int, high: int | None) -> None:
    inside = isinstance(value, int) and not isinstance(value, bool) and value >= low and (high is None or value <= high)
    if not inside:
        limits = f"at least {low}" if high is None else f"from {low} to {high}"
        raise InvalidField(field_name, value, f"must be a whole number {limits}")


def _number(field_name: str, value: Any, low: float, high: float, above: bool = False) -> None:
    right_type = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not right_type or not low <= value <= high or (above and value == low):
        raise InvalidField(field_name, value, f"must be a number {'above' if above else 'from'} {low} up to {high}")


def _stop_strings(stop: str | list[str] | None) -> tuple[str, ...]:
    strings = [stop] if isinstance(stop, str) else list(stop or [])
    for text in strings:
        if not isinstance(text, str) or not text:
            raise InvalidField("stop", text, "stop strings must be texts of at least one character")
    return tuple(strings)


def _logit_bias(bias: dict[int, float] | None) -> dict[int, float] | None:
    """Keys may be texts of whole numbers, as JSON has no other keys. Values are added to the logits."""
    if not bias:
        return None
    checked: dict[int, float] = {}
    for key, value in bias.items():
        try:
            token = int(key)
        except (TypeError, ValueError):
            raise InvalidField("logit_bias", key, "keys must be token ids") from None
        _number(f"logit_bias.{key}", value, -100.0, 100.0)
        checked[token] = float(value)
    return checked
