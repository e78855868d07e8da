"""Whatever shares the step, the pool and the budget: every sequence gets the tokens it gets alone.

The model is a hash of all tokens so far, and it reads them only through the block tables of each `Step`, from the
same content store as the KV tests. A wrong table, copy, order or count changes the tokens or trips the store.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field

import pytest

from octavo.core.errors import CapacityError
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.core.step import Chunk, Step
from octavo.engine.scheduler import Scheduler
from octavo.engine.sequence import Sequence
from octavo.kv.kv_cache import KVCache
from tests.kv.content_store import ContentStore

VOCABULARY = 3  # few letters: prefixes meet


def next_token(tokens: Tokens[int], index: int) -> int:
    """The fake model and sampler: depends on every token and on which of `n` answers it is."""
    return hashlib.blake2b(repr((list(tokens), index)).encode(), digest_size=2).digest()[0] % VOCABULARY


def alone(prompt: list[int], index: int, num_tokens: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(next_token(tokens, index))
    return tokens[len(prompt) :]


def sequence(
    sequence_id: int,
    prompt: list[int],
    max_tokens: int,
    priority: int = 0,
    arrival: float | None = None,
    **sampling: int,
) -> Sequence:
    params = SamplingParams(max_tokens=max_tokens, **sampling)
    seconds = float(sequence_id) if arrival is None else arrival
    return Sequence.of(
        sequence_id, Request(str(sequence_id), prompt, params, priority=priority, arrival_seconds=seconds)
    )


@dataclass
class Simulation:
    """An engine without a model: schedule, execute, advance, append, fork, end."""

    scheduler: Scheduler
    store: ContentStore = field(init=False)
    finished: dict[int, Sequence] = field(default_factory=dict)
    live: dict[int, Sequence] = field(default_factory=dict)
    prompt_rows: dict[int, set[int]] = field(default_factory=dict)
    tables: dict[int, tuple[int, list[int]]] = field(default_factory=dict)  # the executor's copies, with their epoch
    num_steps: int = 0

    def __post_init__(self) -> None:
        self.store = ContentStore(self.scheduler.cache.num_blocks, self.scheduler.cache.block_size)

    def add(self, sequence: Sequence) -> None:
        self.scheduler.add(sequence)
        self.live[sequence.sequence_id] = sequence

    def abort(self, sequence: Sequence) -> None:
        self.scheduler.remove(sequence)
        del self.live[sequence.sequence_id]
        self.scheduler.cache.check()

    def step(self) -> bool:
        scheduled = self.scheduler.schedule()
        if scheduled is None:
            return False
        self.num_steps += 1
        self.check_step(scheduled.step.num_tokens)
        self.follow_tables(scheduled.step)
        self.store.copy(scheduled.step.block_copies)
        rows = [self.execute(chunk) for chunk in scheduled.step.chunks]
        self.scheduler.advance(scheduled)
        for sequence, chunk, prefix in zip(scheduled.sequences, scheduled.step.chunks, rows, strict=True):
            assert chunk.sequence_id == sequence.sequence_id
            self.publish(sequence, chunk.start, chunk.logit_rows, prefix)
        self.scheduler.cache.check()
        return True

    def check_step(self, num_tokens: int) -> None:
        scheduler = self.scheduler
        assert 0 < num_tokens <= scheduler.max_num_batched_tokens
        assert scheduler.num_running <= scheduler.max_num_seqs
        assert scheduler.num_running + scheduler.num_waiting == len(self.live)
        scheduler.cache.check()

    def follow_tables(self, step: Step) -> None:
        """As an executor does that keeps copies of tables: nothing wrong, nothing left behind."""
        for sequence_id in step.ended_sequences:
            self.tables.pop(sequence_id, None)
        for chunk in step.chunks:
            table = chunk.block_table
            epoch, kept = self.tables.get(chunk.sequence_id, (0, []))
            kept = kept if epoch == table.epoch else []
            kept += table.blocks[len(kept) :]
            self.tables[chunk.sequence_id] = table.epoch, kept
            assert kept == table.blocks
        assert len(self.tables) <= self.scheduler.num_running

    def execute(self, chunk: Chunk) -> tuple[int, ...]:
        """Compute the chunk; returns all tokens the last row can see, as found through the table."""
        end = chunk.start + len(chunk.tokens)
        past = self.store.read(chunk.block_table, chunk.start)
        self.store.write(chunk.block_table, [*past, *chunk.tokens], chunk.start, end)
        return self.store.read(chunk.block_table, end)

    def publish(self, sequence: Sequence, start: int, logit_rows: list[int], prefix: tuple[int, ...]) -> None:
        assert list(prefix) == sequence.tokens[: len(prefix)]
        if sequence.num_output_tokens == 0:
            self.prompt_rows.setdefault(sequence.sequence_id, set()).update(start + row for row in logit_rows)
        if sequence.num_uncomputed_tokens:
            assert len(prefix) - start - 1 not in logit_rows or sequence.request.sampling.prompt_logprobs is not None
            return
        assert logit_rows[-1] == len(prefix) - start - 1
        answers = [sequence]
        if sequence.num_output_tokens == 0 and sequence.request.sampling.n > 1:
            answers += self.fork(sequence)
        for answer in answers:
            self.append(answer, next_token(prefix, answer.index))

    def fork(self, parent: Sequence) -> list[Sequence]:
        count = parent.request.sampling.n
        children = [Sequence.of(parent.sequence_id + index, parent.request, index) for index in range(1, count)]
        self.scheduler.fork(parent, children)
        self.live.update({child.sequence_id: child for child in children})
        return children

    def append(self, sequence: Sequence, token: int) -> None:
        if sequence.request.sampling.max_tokens:
            sequence.append_token(token, float(self.num_steps))
        max_tokens = sequence.request.sampling.max_tokens
        if sequence.num_output_tokens == max_tokens or self.scheduler.reached_limit(sequence):
            self.scheduler.remove(sequence)
            self.finished[sequence.sequence_id] = self.live.pop(sequence.sequence_id)

    def run(self, max_steps: int = 5_000) -> None:
        while self.live:
            assert self.step(), "sequences are left but nothing is scheduled"
            assert self.num_steps < max_steps, "starvation"


def check_answers(simulation: Simulation) -> None:
    for answer in simulation.finished.values():
        output = answer.output_token_ids
        assert output == alone(answer.request.prompt_token_ids, answer.index, len(output))
        max_tokens = answer.request.sampling.max_tokens
        limit = simulation.scheduler.max_sequence_tokens - answer.num_prompt_tokens
        assert len(output) == min(max_tokens, limit), "no token lost or added"
        assert 0 <= answer.num_cached_tokens <= answer.num_prompt_tokens - 1
        if answer.request.sampling.prompt_logprobs is not None and answer.index == 0:
            assert simulation.prompt_rows[answer.sequence_id] == set(range(answer.num_prompt_tokens))
    cache = simulation.scheduler.cache
    cache.check()
    assert cache.num_used_blocks == 0


def random_sequence(rng: random.Random, sequence_id: int, max_prompt_tokens: int, arrival: float) -> Sequence:
    stem = rng.choice([[], [0, 1, 2, 0, 1, 2, 0, 1], [0, 1, 2, 0, 1, 1]])
    prompt = (stem + [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 12))])[:max_prompt_tokens]
    sampling: dict[str, int] = {"n": rng.choice([1, 1, 1, 2, 4])}
    if rng.random() < 0.2:
        sampling["prompt_logprobs"] = 1
    return sequence(sequence_id, prompt, rng.randint(1, 20), rng.choice([0, 0, 0, 1, -1]), arrival, **sampling)


@pytest.mark.parametrize("seed", range(60))
def test_any_traffic_gives_the_answers_of_each_sequence_alone(seed: int) -> None:
    rng = random.Random(seed)
    block_size = rng.randint(1, 5)
    num_blocks = rng.randint(max(2, 12 // block_size), 40 // block_size + 2)
    cache = KVCache(num_blocks, block_size, prefix_caching=rng.random() < 0.8)
    scheduler = Scheduler(cache, rng.randint(1, 6), rng.choice([1, 2, 3, 7, 16, 64]), rng.randint(20, 60))
    simulation = Simulation(scheduler)
    max_prompt_tokens = min(scheduler.max_model_len - 1, num_blocks * block_size)
    arrivals = sorted(rng.randrange(120) for _ in range(12))
    for number, arrival in enumerate(arrivals):
        while simulation.num_steps < arrival and simulation.step():
            if simulation.live and rng.random() < 0.03:
                simulation.abort(rng.choice(list(simulation.live.values())))
        simulation.add(random_sequence(rng, number * 10, max_prompt_tokens, float(arrival)))
    simulation.run()
    check_answers(simulation)


@pytest.mark.parametrize("budget", [5, 64])
def test_preempted_answers_are_whole(budget: int) -> None:
    """Bug C4: a pool that cannot hold four requests of 200 tokens, with prompts around block edges."""
    scheduler = Scheduler(KVCache(30, 16), 4, budget, 1000)
    simulation = Simulation(scheduler)
    for number, length in enumerate((15, 16, 17, 31)):
        simulation.add(sequence(number, [number % VOCABULARY] * length, 200 - length, logprobs=1))
    simulation.run(max_steps=20_000)
    check_answers(simulation)
    assert len(simulation.finished) == 4
    assert scheduler.num_preemptions >= 1
    assert scheduler.num_preemptions == sum(answer.num_preemptions for answer in simulation.finished.values())


def test_an_unfitting_prompt_is_refused_and_blocks_nobody() -> None:
    """Bug C1: 8 blocks of 16, context 2048; 1000 tokens, then 5 tokens, then an answer that outgrows the pool."""
    simulation = Simulation(Scheduler(KVCache(8, 16), 4, 64, 2048))
    with pytest.raises(CapacityError, match=r"1000 tokens need 63 KV blocks, the whole pool has 8 "):
        simulation.add(sequence(0, [1] * 1000, 10))
    simulation.add(sequence(1, [1] * 5, 3))
    simulation.add(sequence(2, [2] * 5, 1000))
    simulation.run()
    check_answers(simulation)
    assert simulation.finished[1].num_output_tokens == 3
    assert simulation.finished[2].num_tokens == 8 * 16 + 1, "the pool is used to the last place"


def test_an_answer_that_outgrows_the_pool_ends_at_the_same_length_in_company() -> None:
    """The pool's end must not depend on the batch, or the same request would have two answers."""
    simulation = Simulation(Scheduler(KVCache(8, 4), 4, 16, 2048))
    for number in range(4):
        simulation.add(sequence(number, [number % VOCABULARY] * (3 + number), 1000))
    simulation.run()
    check_answers(simulation)
    assert {answer.num_tokens for answer in simulation.finished.values()} == {33}
    assert simulation.scheduler.num_preemptions > 0


def test_forks_beyond_the_free_slots_wait_and_hit_the_cache() -> None:
    cache = KVCache(40, 4)
    simulation = Simulation(Scheduler(cache, 2, 64, 100))
    simulation.add(sequence(0, [0, 1, 2, 0, 1, 2, 0, 1, 2], 6, n=5))
    assert simulation.step()
    assert (simulation.scheduler.num_running, simulation.scheduler.num_waiting) == (2, 3)
    assert cache.num_used_blocks == 3, "the running ones share until they write"
    simulation.run()
    check_answers(simulation)
    assert sorted(answer.index for answer in simulation.finished.values()) == [0, 1, 2, 3, 4]
    assert len({tuple(answer.output_token_ids) for answer in simulation.finished.values()}) > 1
    assert cache.num_hit_tokens == 3 * 8
