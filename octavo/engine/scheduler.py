"""Which tokens are computed next, and who gives way when blocks run out."""

from __future__ import annotations

import time
from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter

from octavo.core.errors import CapacityError, InvalidField
from octavo.core.step import Chunk, Step
from octavo.engine.sequence import Sequence
from octavo.kv.kv_cache import KVCache

_by_order = attrgetter("order")

#: Prompt positions scored in one step (each brings a row of logits as wide as the vocabulary: it bounds their memory);
#: beyond that each scoring sequence still gets one.
MAX_SCORED_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Scheduled:
    """One step and the sequences it advances: `sequences[i]` owns `step.chunks[i]`."""

    step: Step
    sequences: list[Sequence]


@dataclass(slots=True)
class _Plan:
    """How many tokens of which sequence the step computes, within the token budget."""

    num_tokens_left: int
    num_scored_tokens_left: int = MAX_SCORED_TOKENS
    num_tokens: dict[int, int] = field(default_factory=dict)  # by sequence id, in step order
    preempted: bool = False

    def take(self, sequence: Sequence) -> None:
        count = min(len(sequence.tokens) - sequence.num_computed_tokens, self.num_tokens_left)
        if sequence.scores_prompt and sequence.wants_prompt_rows:
            count = min(count, max(1, self.num_scored_tokens_left))
            self.num_scored_tokens_left -= count
        self.num_tokens[sequence.sequence_id] = count
        self.num_tokens_left -= count

    def drop(self, sequence: Sequence) -> None:
        self.num_tokens_left += self.num_tokens.pop(sequence.sequence_id, 0)


class Scheduler:
    """Hands out a token budget, step after step. No phases: a sequence has tokens computed and tokens to compute.

        add ----> waiting ---- all its known tokens get blocks ----> running ----> remove
                     ^            (cached prefix first)                 |
                     +---- preempted: blocks closed, recompute ---------+       append_token by the engine

    A step is `schedule` -> execute -> `advance`; then the engine appends each new token to its sequence
    (`Sequence.append_token`), calls `fork` once a prompt with `n > 1` is computed, and `remove`s what has ended. It
    must end a sequence that `reached_limit`.

    * Running sequences come first, then waiting ones by (priority, arrival); nobody overtakes the first waiting.
    * A sequence is admitted when blocks for all its known tokens are there, so that a prompt in chunks is not
      thrown out by the next one.
    * When blocks run out, the last running sequence by (priority, arrival) is preempted. Its full blocks stay in
      the prefix cache until they are needed, so recomputing is often cheap.
    * A running sequence is never preempted for a waiting one.

    `ended_sequences` are ids whose tables another scheduler of the same executor had open.

    Owns: the two queues. Does not own: blocks (`KVCache`), the choice of tokens (`Sampler`), when to stop (engine).
    """

    def __init__(
        self,
        cache: KVCache,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        ended_sequences: Iterable[int] = (),
    ) -> None:
        _at_least_one("max_num_seqs", max_num_seqs)
        _at_least_one("max_num_batched_tokens", max_num_batched_tokens)
        _at_least_one("max_model_len", max_model_len)
        self.cache = cache
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len
        #: Most tokens, prompt and output, a sequence may have. The last one is never computed: it needs no place.
        #: Depends on nothing but the sequence itself, so that neither does the answer.
        self.max_sequence_tokens = min(max_model_len, cache.num_blocks * cache.block_size + 1)
        self.num_preemptions = 0
        self._running: dict[int, Sequence] = {}
        self._waiting: list[Sequence] = []  # sorted by order
        self._ended = list(ended_sequences)  # told to the executor with the next step
        self._refused: tuple[int, int] | None = None  # (sequence id, blocks then available) of a failed admission

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def reached_limit(self, sequence: Sequence) -> bool:
        """Whether the sequence has to end now, with finish reason `length`."""
        return sequence.num_tokens >= self.max_sequence_tokens

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises `CapacityError` at once if it can never run.

        A prompt may have `max_model_len - 1` tokens (one place is left to generate; all `max_model_len` if
        `max_tokens` is 0) and must fit into the whole pool.
        """
        self._check_capacity(sequence)
        insort(self._waiting, sequence, key=_by_order)

    def schedule(self) -> Scheduled | None:
        """The next step, or None if there is nothing to compute."""
        plan = _Plan(self.max_num_batched_tokens)
        self._plan_running(plan)
        if not plan.preempted:
            self._plan_waiting(plan)
        if not plan.num_tokens:
            return None
        running = self._running
        sequences = [running[sequence_id] for sequence_id in plan.num_tokens]
        chunks = [self._chunk(*each) for each in zip(sequences, plan.num_tokens.values(), strict=True)]
        ended, self._ended = self._ended, []
        return Scheduled(Step(chunks, self.cache.take_copies(), ended), sequences)

    def abandon(self) -> list[int]:
        """Every id the executor may know of, ended or not; the scheduler is of no use afterwards."""
        return [*self._ended, *self._running]

    def advance(self, scheduled: Scheduled) -> None:
        """The step has been executed: its tokens are computed. Sequences removed in the meantime are passed over."""
        running, commit = self._running, self.cache.commit
        for sequence, chunk in zip(scheduled.sequences, scheduled.step.chunks, strict=True):
            if chunk.sequence_id in running:
                num_computed_tokens = chunk.start + len(chunk.tokens)
                sequence.num_computed_tokens = num_computed_tokens
                commit(chunk.sequence_id, sequence.tokens, num_computed_tokens)

    def fork(self, parent: Sequence, children: Iterable[Sequence]) -> None:
        """Let children with the parent's tokens share what is computed; call between `advance` and `append_token`.

        Children run at once, in free slots; beyond `max_num_seqs` they wait like everybody else and find the
        prompt in the prefix cache when their turn comes. They count as admitted when the parent was.
        """
        for child in children:
            child.num_cached_tokens = parent.num_cached_tokens
            child.first_scheduled_seconds = parent.first_scheduled_seconds
            if len(self._running) < self.max_num_seqs:
                self.cache.fork(parent.sequence_id, child.sequence_id)
                child.num_computed_tokens = parent.num_computed_tokens
                self._running[child.sequence_id] = child
            else:
                insort(self._waiting, child, key=_by_order)

    def remove(self, sequence: Sequence) -> None:
        """The sequence has ended or was aborted: its blocks are free at once. Unknown sequences are passed over."""
        if self._running.pop(sequence.sequence_id, None) is not None:
            self._close(sequence)
            return
        position = bisect_left(self._waiting, sequence.order, key=_by_order)
        if position < len(self._waiting) and self._waiting[position] is sequence:
            del self._waiting[position]

    def _check_capacity(self, sequence: Sequence) -> None:
        num_prompt_tokens, max_tokens = sequence.num_prompt_tokens, sequence.request.sampling.max_tokens
        limit = self.max_model_len if max_tokens == 0 else self.max_model_len - 1
        if num_prompt_tokens > limit:
            raise CapacityError(
                f"prompt: {num_prompt_tokens} tokens are too many for max_model_len {self.max_model_len}; with "
                f"max_tokens {max_tokens} a prompt may have at most {limit}"
            )
        num_needed, num_blocks = self.cache.num_blocks_for(num_prompt_tokens), self.cache.num_blocks
        if num_needed > num_blocks:
            raise CapacityError(
                f"prompt: {num_prompt_tokens} tokens need {num_needed} KV blocks, the whole pool has {num_blocks} of "
                f"{self.cache.block_size} tokens; shorten the prompt or give more memory"
            )

    def _plan_running(self, plan: _Plan) -> None:
        for sequence in list(self._running.values()):
            if len(sequence.tokens) == sequence.num_computed_tokens:
                continue  # about to be ended by the engine
            if plan.preempted and sequence.sequence_id not in self._running:
                continue
            if not plan.num_tokens_left:
                self._to_front(sequence)
                return
            if self._make_room(sequence, plan):
                plan.take(sequence)

    def _plan_waiting(self, plan: _Plan) -> None:
        while self._waiting and plan.num_tokens_left and len(self._running) < self.max_num_seqs:
            if not self._admit(self._waiting[0]):
                return
            sequence = self._waiting.pop(0)
            self._running[sequence.sequence_id] = sequence
            plan.take(sequence)

    def _make_room(self, sequence: Sequence, plan: _Plan) -> bool:
        """Blocks for the sequence's next tokens, preempting from the end; False if it was preempted itself."""
        num_tokens = min(len(sequence.tokens), sequence.num_computed_tokens + plan.num_tokens_left)
        while not self.cache.reserve(sequence.sequence_id, num_tokens):
            if len(self._running) == 1:
                raise self._outgrown(sequence)
            victim = max(self._running.values(), key=_by_order)
            self._preempt(victim)
            plan.drop(victim)
            plan.preempted = True
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        del self._running[sequence.sequence_id]
        self._close(sequence)
        sequence.num_computed_tokens = 0
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        insort(self._waiting, sequence, key=_by_order)  # before all of its priority that never ran

    def _close(self, sequence: Sequence) -> None:
        self.cache.close(sequence.sequence_id)
        self._ended.append(sequence.sequence_id)

    def _admit(self, sequence: Sequence) -> bool:
        """Open the sequence with its cached prefix and blocks for all its known tokens, or leave no trace."""
        num_available = self.cache.num_free_blocks + self.cache.num_cached_blocks
        if self._running and self._refused is not None:
            refused_id, num_then_available = self._refused
            if refused_id == sequence.sequence_id and num_available <= num_then_available:
                return False  # nothing was freed since the last attempt; spares the lookup of a long prompt
        use_cache = not sequence.wants_prompt_rows
        num_cached_tokens = self.cache.open(sequence.sequence_id, sequence.tokens, use_cache)
        if not self.cache.reserve(sequence.sequence_id, sequence.num_tokens):
            self.cache.close(sequence.sequence_id)
            if not self._running:
                raise self._outgrown(sequence)
            self._refused = (sequence.sequence_id, num_available)
            return False
        sequence.num_computed_tokens = num_cached_tokens
        if sequence.first_scheduled_seconds is None:
            sequence.first_scheduled_seconds = time.monotonic()
            sequence.num_cached_tokens = num_cached_tokens
        return True

    def _outgrown(self, sequence: Sequence) -> CapacityError:
        """Only if the engine did not end a sequence in time: alone in the pool it does not fit."""
        return CapacityError(
            f"sequence {sequence.sequence_id}: {sequence.num_tokens} tokens in a pool of {self.cache.num_blocks} KV "
            f"blocks of {self.cache.block_size}; it has to end when it reached_limit"
        )

    def _to_front(self, sequence: Sequence) -> None:
        """Begin with this sequence next time: with a budget below one token each, all take turns."""
        running = list(self._running)
        first = running.index(sequence.sequence_id)
        self._running = {key: self._running[key] for key in running[first:] + running[:first]}

    def _chunk(self, sequence: Sequence, num_tokens: int) -> Chunk:
        start = sequence.num_computed_tokens
        end = start + num_tokens
        if sequence.scores_prompt and sequence.wants_prompt_rows:
            logit_rows = list(range(num_tokens))
        else:
            logit_rows = [num_tokens - 1] if end == len(sequence.tokens) else []
        sequence_id = sequence.sequence_id
        return Chunk(sequence_id, sequence.tokens[start:end], start, self.cache.block_table(sequence_id), logit_rows)


def _at_least_one(field_name: str, value: int) -> None:
    if value < 1:
        raise InvalidField(field_name, value, "must be at least 1")
