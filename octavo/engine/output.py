"""The answer side of one sequence: text, log-probabilities and the end, token by token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from octavo.core.outputs import OutputDelta, PositionLogprobs, RequestTiming
from octavo.core.request import FinishReason, Request
from octavo.engine.logprobs import Spell, position_logprobs
from octavo.engine.sequence import Sequence
from octavo.engine.stopping import Finish, StopRules
from octavo.ops.native.sampling import Logits, sequence_sampler
from octavo.text.detokenizer import IncrementalDetokenizer
from octavo.text.stop_strings import StopChecker

if TYPE_CHECKING:
    from octavo.text.tokenizer import Tokenizer


class TextStream:
    """Tokens -> text that is ready to be shown: whole characters only, nothing that may become a stop string.

    Stop strings are looked for only in text that begins after `min_tokens` tokens.
    """

    def __init__(self, tokenizer: Tokenizer, request: Request) -> None:
        params = request.sampling
        self._detokenizer = IncrementalDetokenizer(tokenizer, params.skip_special_tokens, request.prompt_token_ids)
        self._stops = StopChecker(list(params.stop_strings), params.include_stop_str_in_output)
        self._has_stops = bool(params.stop_strings)
        self._unchecked_tokens = params.min_tokens

    def push(self, token_id: int) -> tuple[str, str | None]:
        """(text ready now, the stop string it ended with or None)."""
        text = self._detokenizer.push(token_id)
        if not self._has_stops:
            return text, None
        if self._unchecked_tokens:
            self._unchecked_tokens -= 1
            return text, None
        return self._stops.push(text) if text else ("", None)

    def flush(self) -> tuple[str, str | None]:
        """Everything held back, at the end; an unfinished character becomes U+FFFD."""
        text, stop = self._stops.push(self._detokenizer.flush())
        return (text, stop) if stop else (text + self._stops.flush(), None)


@dataclass(slots=True)
class RequestProgress:
    """What the sequences of one request share. Times are monotonic seconds."""

    request: Request
    seed: int
    rules: StopRules
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    outputs: list[SequenceOutput] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.request.sampling.prompt_logprobs is not None:
            self.prompt_logprobs = [None]

    @property
    def prompt_is_scored(self) -> bool:
        return self.prompt_logprobs is None or len(self.prompt_logprobs) == len(self.request.prompt_token_ids)

    def score_prompt(self, logits: Logits, first_row: int, start: int, offsets: list[int], spell: Spell) -> None:
        """Log-probabilities of the prompt's tokens: row `first_row + i` of the logits belongs to position
        `start + offsets[i]` and scores the next token. Positions that are known already (a sequence recomputed after
        preemption) are skipped. Raises `NonFiniteLogits`."""
        if self.prompt_logprobs is None or self.prompt_is_scored:
            return
        prompt, count = self.request.prompt_token_ids, self.request.sampling.prompt_logprobs or 0
        wanted = range(len(self.prompt_logprobs), len(prompt))
        found = [(row, start + offset + 1) for row, offset in enumerate(offsets, first_row)]
        found = [(row, position) for row, position in found if position in wanted]
        if found:
            rows, chosen = [row for row, _ in found], [prompt[position] for _, position in found]
            self.prompt_logprobs += position_logprobs(logits, rows, chosen, [count] * len(rows), spell)


class SequenceOutput:
    """Takes the tokens sampled for one sequence and makes its deltas.

    Owns the text, the sampling state and the times; does not own KV memory (`Sequence` and the scheduler do).
    """

    def __init__(self, sequence: Sequence, progress: RequestProgress, tokenizer: Tokenizer) -> None:
        params = progress.request.sampling
        self.sequence = sequence
        self.progress = progress
        self.text = TextStream(tokenizer, progress.request)
        self.sampler = sequence_sampler(
            params, progress.seed, sequence.index, progress.request.prompt_token_ids, progress.rules.ending_ids
        )
        self.finish: Finish | None = None
        self._ending_ids = progress.rules.eos_ids | progress.rules.stop_token_ids
        self._max_output_tokens = progress.rules.max_output_tokens
        self._tells_prompt = sequence.index == 0 and progress.prompt_logprobs is not None

    @property
    def num_logprobs(self) -> int | None:
        return self.progress.request.sampling.logprobs

    def append(self, token_id: int, logprobs: PositionLogprobs | None, now: float, at_limit: bool) -> OutputDelta:
        """One sampled token -> the news it makes. Sets `finish` when it was the last one; `at_limit`: memory or
        `max_model_len` hold no more."""
        self.sequence.append_token(token_id, now)
        self.sampler.append(token_id)
        finish: Finish | None
        if token_id in self._ending_ids or at_limit or self.sequence.num_output_tokens >= self._max_output_tokens:
            text, finish = self._read_last(token_id)
        else:
            text, stop = self.text.push(token_id)
            finish = None if stop is None else Finish(FinishReason.STOP, stop)
        delta = self._delta(text, [token_id], None if logprobs is None else [logprobs])
        return delta if finish is None else self._end(delta, finish, now)

    def end(self, finish: Finish, now: float, error: str | None = None) -> OutputDelta:
        """Ends without a new token: length, abort or an error. Text held back is delivered."""
        text, stop = self.text.flush()
        if stop is not None and finish.reason is not FinishReason.ABORT:
            finish = Finish(FinishReason.STOP, stop)
        return replace(self._end(self._delta(text, [], None), finish, now), error=error)

    def _read_last(self, token_id: int) -> tuple[str, Finish]:
        """The text that a token brings which ends the sequence by its id or its place, and why it ends: a stop string
        that is complete now goes before the count, not before a stop token."""
        by_token = self.progress.rules.after_token(token_id)
        text, stop = "", None
        if by_token is None or self.progress.request.sampling.include_stop_str_in_output:
            text, stop = self.text.push(token_id)
        if stop is None:
            rest, stop = self.text.flush()
            text += rest
        if by_token is not None:
            return text, by_token
        return text, Finish(FinishReason.LENGTH) if stop is None else Finish(FinishReason.STOP, stop)

    def _delta(self, text: str, token_ids: list[int], logprobs: list[PositionLogprobs] | None) -> OutputDelta:
        progress = self.progress
        prompt_logprobs = None
        if self._tells_prompt and progress.prompt_is_scored:
            prompt_logprobs, self._tells_prompt = progress.prompt_logprobs, False
        return OutputDelta(
            progress.request.request_id,
            self.sequence.index,
            text,
            token_ids,
            logprobs,
            num_prompt_tokens=len(progress.request.prompt_token_ids),
            num_cached_tokens=self.sequence.num_cached_tokens,
            prompt_logprobs=prompt_logprobs,
        )

    def _end(self, delta: OutputDelta, finish: Finish, now: float) -> OutputDelta:
        self.finish = finish
        sequence = self.sequence
        timing = RequestTiming(
            self.progress.request.arrival_seconds,
            sequence.first_scheduled_seconds,
            sequence.first_token_seconds,
            sequence.last_token_seconds,
            now,
            sequence.num_preemptions,
        )
        return replace(
            delta,
            finish_reason=finish.reason,
            stop_reason=finish.stop_reason,
            ends_with_stop_token=finish.by_token and not self.progress.request.sampling.include_stop_str_in_output,
            timing=timing,
        )


def speller(tokenizer: Tokenizer) -> Callable[[int], tuple[str, bytes]]:
    """token id -> (text, exact bytes), remembered: the same few tokens are spelled again and again."""

    @lru_cache(maxsize=65536)
    def spell(token_id: int) -> tuple[str, bytes]:
        exact = tokenizer.token_bytes(token_id)
        return exact.decode("utf-8", errors="replace"), exact

    return spell
