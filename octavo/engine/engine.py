"""The engine: admits requests, runs steps, publishes what they bring.

    add(request) -> waiting -> schedule -> execute -> publish -> deltas
                                  ^                      |
                                  +----- next token -----+

Not thread-safe: one thread calls it (`AsyncEngine` owns such a thread).
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from torch import Tensor

from octavo.core.errors import InvalidField
from octavo.core.outputs import OutputDelta, PositionLogprobs
from octavo.core.request import FinishReason, Request
from octavo.engine.admission import check_request
from octavo.engine.logprobs import position_logprobs
from octavo.engine.output import RequestProgress, SequenceOutput, speller
from octavo.engine.sampler import NonFiniteLogits, draw_seed, sample
from octavo.engine.scheduler import Scheduled, Scheduler
from octavo.engine.sequence import Sequence
from octavo.engine.stats import EngineStats
from octavo.engine.stopping import Finish, StopRules
from octavo.kv.kv_cache import KVCache
from octavo.ops.base import Executor
from octavo.ops.native.sampling import Logits
from octavo.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

#: Called after each step with its deltas, on the engine's thread.
Listener = Callable[[list[OutputDelta]], None]


@dataclass(slots=True)
class _Sampled:
    """Rows of logits and the sequences that take their next token from them, place by place (several share a row
    when a request has n > 1)."""

    rows: list[int] = field(default_factory=list)
    outputs: list[SequenceOutput] = field(default_factory=list)


class Engine:
    """Requests in, deltas out. An error inside a step ends the requests of that step, never the engine.

    `listeners` are told every step's deltas. Owns the block tables, the scheduler and the answers in progress; the
    executor owns the keys and values themselves.
    """

    def __init__(
        self,
        executor: Executor,
        tokenizer: Tokenizer,
        vocab_size: int,
        *,
        max_model_len: int,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 512,
        prefix_caching: bool = True,
    ) -> None:
        self.executor = executor
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.max_model_len = max_model_len
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.prefix_caching = prefix_caching
        self.listeners: list[Listener] = []
        self._spell = speller(tokenizer)
        self._requests: dict[str, RequestProgress] = {}
        self._outputs: dict[int, SequenceOutput] = {}
        self._unpublished: list[OutputDelta] = []
        self._sequence_ids = itertools.count()
        self._counts = EngineStats(num_blocks=executor.num_blocks)
        self._start_empty()

    def _start_empty(self, ended_sequences: Iterable[int] = ()) -> None:
        self.cache = KVCache(self.executor.num_blocks, self.executor.block_size, self.prefix_caching)
        self.scheduler = Scheduler(
            self.cache, self.max_num_seqs, self.max_num_batched_tokens, self.max_model_len, ended_sequences
        )

    def _start_anew(self) -> None:
        """After the bookkeeping of memory failed: an empty cache and scheduler; the counters keep their sums."""
        self._counts = self.stats
        self._start_empty(self.scheduler.abandon())

    # -- requests ------------------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Admit a request. Raises `InvalidField` or `CapacityError` at once for what can never be answered."""
        if request.request_id in self._requests:
            raise InvalidField("request_id", request.request_id, "a request with this id is still running")
        max_output_tokens = check_request(request, self.vocab_size, self.max_model_len)
        params = request.sampling
        rules = StopRules.of(params, self.tokenizer.eos_ids, max_output_tokens)
        progress = RequestProgress(request, draw_seed() if params.seed is None else params.seed, rules)
        sequence = Sequence.of(next(self._sequence_ids), request)
        self.scheduler.add(sequence)
        self._requests[request.request_id] = progress
        self._follow(sequence, progress)

    def abort(self, request_id: str) -> None:
        """End a request now: its blocks are free when this returns; the next step publishes the last deltas.
        An unknown or finished id is no error: the answer may have ended while the client was leaving."""
        progress = self._requests.get(request_id)
        if progress is not None:
            self._unpublished += self._end_request(progress, Finish(FinishReason.ABORT))

    def is_running(self, request_id: str) -> bool:
        """Whether a request of this id has been added and has not ended."""
        return request_id in self._requests

    @property
    def has_work(self) -> bool:
        return bool(self._requests or self._unpublished)

    @property
    def stats(self) -> EngineStats:
        """A snapshot of the counters; any thread may ask."""
        cache, scheduler = self.cache, self.scheduler
        return replace(
            self._counts,
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            num_used_blocks=cache.num_used_blocks,
            num_cached_blocks=cache.num_cached_blocks,
            num_preemptions=self._counts.num_preemptions + scheduler.num_preemptions,
            num_prefix_queried_tokens=self._counts.num_prefix_queried_tokens + cache.num_queried_tokens,
            num_prefix_hit_tokens=self._counts.num_prefix_hit_tokens + cache.num_hit_tokens,
            finish_reasons=Counter(dict(self._counts.finish_reasons)),  # dict() copies in one go, whoever counts on
        )

    def check_integrity(self) -> bool:
        """Whether every block is free, referenced or cached exactly once; meant for idle moments. Trouble is counted
        and logged; with nothing running the memory starts anew, otherwise the running requests go on."""
        try:
            self.cache.check()
        except Exception:
            log.exception("the KV cache's bookkeeping is damaged")
            self._counts.num_integrity_errors += 1
            if not self._requests:
                self._start_anew()
            return False
        return True

    # -- the step ------------------------------------------------------------------------------------------------

    def step(self) -> list[OutputDelta]:
        """One forward pass for whoever is scheduled; the news it brought."""
        deltas, self._unpublished = self._unpublished, []
        scheduled: Scheduled | None = None
        try:
            scheduled = self.schedule()
            if scheduled is not None:
                logits = self.execute(scheduled)
                for delta in self.publish(scheduled, logits):
                    deltas.append(delta)  # one by one: what was said before an error still counts
        except Exception as error:
            log.exception("a step failed; its requests end, the engine goes on")
            deltas += self._fail(scheduled, error)
        self._tell_listeners(deltas)
        return deltas

    def schedule(self) -> Scheduled | None:
        """Who computes what in this step."""
        return self.scheduler.schedule()

    def execute(self, scheduled: Scheduled) -> Tensor:
        """The forward pass: float32 logits `[step.num_logit_rows, vocabulary]`."""
        return self.executor.execute(scheduled.step)

    def publish(self, scheduled: Scheduled, logits: Tensor) -> Iterator[OutputDelta]:
        """Score prompts, choose tokens, and let every sequence say what it has to say."""
        self.scheduler.advance(scheduled)
        self._counts.num_steps += 1
        array = logits.numpy()
        scored, sampled = self._score_and_fork(scheduled, array)
        yield from scored
        tokens = sample(array, sampled.rows, [output.sampler for output in sampled.outputs])
        logprobs = self._logprobs(array, sampled, tokens)
        now = time.monotonic()
        for output, token, position in zip(sampled.outputs, tokens, logprobs, strict=True):
            if isinstance(token, NonFiniteLogits):
                yield from self._end_request(output.progress, Finish(FinishReason.ABORT), str(token))
            elif output.finish is None:  # its request did not end a moment ago through a sibling
                yield self._append(output, token, position, now)

    def _tell_listeners(self, deltas: list[OutputDelta]) -> None:
        for listener in self.listeners:
            try:
                listener(deltas)
            except Exception:
                log.exception("a listener failed; the engine goes on")

    def _score_and_fork(self, scheduled: Scheduled, logits: Logits) -> tuple[list[OutputDelta], _Sampled]:
        """Rows that score a prompt are used here; returned are the ends of requests that wanted no more than that,
        and the rows to sample from."""
        deltas: list[OutputDelta] = []
        sampled = _Sampled()
        next_row = 0
        for chunk, sequence in zip(scheduled.step.chunks, scheduled.sequences, strict=True):
            output = self._outputs[sequence.sequence_id]
            first_row, next_row = next_row, next_row + len(chunk.logit_rows)
            progress = output.progress
            if not progress.prompt_is_scored:
                try:
                    progress.score_prompt(logits, first_row, chunk.start, chunk.logit_rows, self._spell)
                except NonFiniteLogits as error:
                    deltas += self._end_request(progress, Finish(FinishReason.ABORT), str(error))
                    continue
            if sequence.num_uncomputed_tokens:
                continue
            if not progress.rules.max_output_tokens:
                deltas += self._end_request(progress, Finish(FinishReason.LENGTH))
                continue
            sampled.rows.append(next_row - 1)
            sampled.outputs.append(output)
            if len(progress.outputs) < progress.request.sampling.n:
                children = self._fork(output)
                sampled.rows += [next_row - 1] * len(children)
                sampled.outputs += children
        return deltas, sampled

    def _fork(self, output: SequenceOutput) -> list[SequenceOutput]:
        """The request's other answers, which take a token from this sequence's row too: its prompt has just been
        computed for the first time."""
        progress = output.progress
        missing = range(len(progress.outputs), progress.request.sampling.n)
        children = [Sequence.of(next(self._sequence_ids), progress.request, index) for index in missing]
        self.scheduler.fork(output.sequence, children)
        return [self._follow(child, progress) for child in children]

    def _logprobs(
        self, logits: Logits, sampled: _Sampled, tokens: list[int | NonFiniteLogits]
    ) -> Iterable[PositionLogprobs | None]:
        """Of each sampled row, None where the request wants none."""
        places, rows, chosen, counts = [], [], [], []
        for place, output in enumerate(sampled.outputs):
            token, count = tokens[place], output.num_logprobs
            if count is not None and isinstance(token, int):
                places.append(place)
                rows.append(sampled.rows[place])
                chosen.append(token)
                counts.append(count)
        if not places:
            return itertools.repeat(None, len(tokens))
        found: list[PositionLogprobs | None] = [None] * len(tokens)
        for place, position in zip(places, position_logprobs(logits, rows, chosen, counts, self._spell), strict=True):
            found[place] = position
        return found

    def _append(self, output: SequenceOutput, token: int, logprobs: PositionLogprobs | None, now: float) -> OutputDelta:
        self._counts.num_generation_tokens += 1
        at_limit = self.scheduler.max_sequence_tokens <= output.sequence.num_tokens + 1
        delta = output.append(token, logprobs, now, at_limit)
        if output.finish is not None:
            self._close(output)
        return delta

    # -- the ends ------------------------------------------------------------------------------------------------

    def _follow(self, sequence: Sequence, progress: RequestProgress) -> SequenceOutput:
        output = SequenceOutput(sequence, progress, self.tokenizer)
        progress.outputs.append(output)
        self._outputs[sequence.sequence_id] = output
        return output

    def _end_request(self, progress: RequestProgress, finish: Finish, error: str | None = None) -> list[OutputDelta]:
        """End every sequence of a request that has not ended, those not yet forked included."""
        for index in range(len(progress.outputs), progress.request.sampling.n):
            self._follow(Sequence.of(next(self._sequence_ids), progress.request, index), progress)
        now = time.monotonic()
        deltas = []
        for output in progress.outputs:
            if output.finish is None:
                deltas.append(output.end(finish, now, error))
                self._close(output)
        return deltas

    def _close(self, output: SequenceOutput) -> None:
        """An ended sequence leaves: its blocks are free, the counters know why."""
        assert output.finish is not None
        progress = output.progress
        self._counts.finish_reasons[output.finish.reason] += 1
        del self._outputs[output.sequence.sequence_id]
        if (
            all(each.finish is not None for each in progress.outputs)
            and len(progress.outputs) == progress.request.sampling.n
        ):
            del self._requests[progress.request.request_id]
            self._counts.num_prompt_tokens += len(progress.request.prompt_token_ids)
        self.scheduler.remove(output.sequence)

    def _fail(self, scheduled: Scheduled | None, error: Exception) -> list[OutputDelta]:
        """The requests of a failed step end with the error. Without a step, or when even that fails, the bookkeeping
        itself is at fault: then all requests end and memory starts anew."""
        self._counts.num_failed_steps += 1
        reason = f"{type(error).__name__}: {error}"
        deltas: list[OutputDelta] = []
        try:
            if scheduled is not None:
                for request_id in dict.fromkeys(sequence.request.request_id for sequence in scheduled.sequences):
                    if request_id in self._requests:
                        deltas += self._end_request(self._requests[request_id], Finish(FinishReason.ABORT), reason)
                return deltas
        except Exception:
            log.exception("ending the requests of the failed step failed too")
        self._start_anew()
        for progress in list(self._requests.values()):
            deltas += self._end_request(progress, Finish(FinishReason.ABORT), reason)
        return deltas
