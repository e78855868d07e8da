"""Log-probabilities of an answer's tokens, matched to the answer's text.

A token is shown exactly when its text is: tokens held back for a possible stop string wait with it, tokens behind a
stop string and the token that ends an answer are not part of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from octavo.core.outputs import Logprob, OutputDelta, PositionLogprobs
from octavo.core.request import FinishReason
from octavo.core.sampling_params import SamplingParams
from octavo.serve.responses import ChatLogprobs, CompletionLogprobs, TokenLogprob, TopLogprob
from octavo.text.detokenizer import IncrementalDetokenizer
from octavo.text.tokenizer import Tokenizer

#: JSON has no minus infinity; this is what vLLM writes for a token that can not be chosen.
LOWEST_LOGPROB = -9999.0


@dataclass(slots=True)
class ShownToken:
    """A token of an answer: its alternatives, the text it adds, and where in the answer that starts (characters)."""

    token_id: int
    position: PositionLogprobs | None
    piece: str
    start: int
    special: bool


class ShownTokens:
    """The tokens of one growing answer, released in step with its text.

    `prompt` are the ids before it: they decide whether its first word keeps its space. `first_offset` characters stand
    before the answer (an echoed prompt).
    """

    def __init__(
        self, tokenizer: Tokenizer, sampling: SamplingParams, prompt: Sequence[int], first_offset: int = 0
    ) -> None:
        self._tokenizer = tokenizer
        self._holds_back = bool(sampling.stop_strings)
        self._detokenizer = IncrementalDetokenizer(tokenizer, sampling.skip_special_tokens, prompt)
        self._skips_special = sampling.skip_special_tokens
        self._decoded = self._shown = first_offset
        self._waiting: list[ShownToken] = []

    def push(self, delta: OutputDelta) -> list[ShownToken]:
        """The tokens whose text is shown once `delta.text` is."""
        positions: Sequence[PositionLogprobs | None] = delta.logprobs or [None] * len(delta.token_ids)
        shown = len(delta.token_ids) - delta.ends_with_stop_token
        for token_id, position in zip(delta.token_ids[:shown], positions[:shown], strict=True):
            piece = self._detokenizer.push(token_id)
            special = self._skips_special and token_id in self._tokenizer.special_ids
            self._waiting.append(ShownToken(token_id, position, piece, self._decoded, special))
            self._decoded += len(piece)
        self._shown += len(delta.text)
        if delta.finish_reason is not None:
            return self._last(delta)
        if not self._holds_back:
            return self._release(len(self._waiting))
        return self._release(self._num_covered())

    def _last(self, delta: OutputDelta) -> list[ShownToken]:
        if delta.finish_reason is FinishReason.STOP and isinstance(delta.stop_reason, str):
            return self._release(self._num_covered())
        rest = self._detokenizer.flush()
        if self._waiting:
            self._waiting[-1].piece += rest
        return self._release(len(self._waiting))

    def _num_covered(self) -> int:
        covered = (index for index, token in enumerate(self._waiting) if token.start >= self._shown)
        return next(covered, len(self._waiting))

    def _release(self, count: int) -> list[ShownToken]:
        released, self._waiting = self._waiting[:count], self._waiting[count:]
        return released


def prompt_tokens(
    tokenizer: Tokenizer, token_ids: Sequence[int], positions: Sequence[PositionLogprobs | None], text: str
) -> list[ShownToken]:
    """The tokens of an echoed prompt; a BOS that the tokenizer put before `text` has an empty piece."""
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=False)
    tokens: list[ShownToken] = []
    start = 0
    for index, (token_id, position) in enumerate(zip(token_ids, positions, strict=True)):
        added_bos = index == 0 and token_id == tokenizer.bos_id and not text.startswith(_spelled(tokenizer, token_id))
        piece = "" if added_bos else detokenizer.push(token_id)
        tokens.append(ShownToken(token_id, position, piece, start, False))
        start += len(piece)
    tokens[-1].piece += detokenizer.flush()
    return tokens


def _spelled(tokenizer: Tokenizer, token_id: int) -> str:
    return tokenizer.token_bytes(token_id).decode(errors="replace")


def chat_logprobs(tokens: Sequence[ShownToken], num_top: int) -> ChatLogprobs:
    """One entry per token of the message, each with its `num_top` most likely alternatives."""
    return {"content": [_chat_entry(token, num_top) for token in tokens if not token.special and token.position]}


def _chat_entry(token: ShownToken, num_top: int) -> TokenLogprob:
    assert token.position is not None
    likely = sorted(token.position.values(), key=lambda entry: entry.rank)[:num_top]
    return {**_top_entry(token.position[token.token_id]), "top_logprobs": [_top_entry(entry) for entry in likely]}


def _top_entry(entry: Logprob) -> TopLogprob:
    return {"token": entry.decoded_token, "logprob": finite(entry.logprob), "bytes": list(entry.token_bytes)}


def completion_logprobs(tokens: Sequence[ShownToken]) -> CompletionLogprobs:
    """One entry per token; the first token of an echoed prompt has null values."""
    return {
        "tokens": [token.piece for token in tokens],
        "token_logprobs": [
            None if token.position is None else finite(token.position[token.token_id].logprob) for token in tokens
        ],
        "top_logprobs": [None if token.position is None else _top_by_text(token.position) for token in tokens],
        "text_offset": [token.start for token in tokens],
    }


def _top_by_text(position: PositionLogprobs) -> dict[str, float]:
    """Text -> log-probability, the most likely first. Where two tokens have one text the likelier one stands."""
    by_text: dict[str, float] = {}
    for entry in sorted(position.values(), key=lambda entry: entry.rank):
        by_text.setdefault(_key(entry), finite(entry.logprob))
    return by_text


def _key(entry: Logprob) -> str:
    """The token's text, or `bytes:\\xf0\\x9f` (as OpenAI writes it) where it is no text on its own."""
    try:
        return entry.token_bytes.decode() if entry.token_bytes else entry.decoded_token
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in entry.token_bytes)


def finite(logprob: float) -> float:
    """A log-probability as JSON can carry it: minus infinity becomes `LOWEST_LOGPROB`. NaN is a bug and raises."""
    if math.isnan(logprob):
        raise ValueError("a log-probability is not a number")
    return max(logprob, LOWEST_LOGPROB)
