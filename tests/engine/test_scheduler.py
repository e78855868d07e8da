"""The scheduler's rules, one by one."""

from __future__ import annotations

import random
import time

import pytest

from octavo.core.errors import CapacityError, InvalidField
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.engine.scheduler import Scheduled, Scheduler
from octavo.engine.sequence import Sequence
from octavo.kv.kv_cache import KVCache


def scheduler_of(
    num_blocks: int = 16, block_size: int = 4, max_num_seqs: int = 8, budget: int = 64, max_model_len: int = 256
) -> Scheduler:
    return Scheduler(KVCache(num_blocks, block_size), max_num_seqs, budget, max_model_len)


def sequence_of(sequence_id: int, num_tokens: int, priority: int = 0, arrival: float | None = None, **sampling: int):
    prompt = [100 * sequence_id + position for position in range(num_tokens)]
    seconds = float(sequence_id) if arrival is None else arrival
    request = Request(str(sequence_id), prompt, SamplingParams(**sampling), priority=priority, arrival_seconds=seconds)
    return Sequence.of(sequence_id, request)


def step(scheduler: Scheduler) -> Scheduled:
    """One step; every sequence that is computed to its end gets token 7."""
    scheduled = scheduler.schedule()
    assert scheduled is not None
    scheduler.advance(scheduled)
    for sequence in scheduled.sequences:
        if not sequence.num_uncomputed_tokens:
            sequence.append_token(7, 0.0)
    scheduler.cache.check()
    return scheduled


def lengths(scheduled: Scheduled) -> dict[int, int]:
    return {chunk.sequence_id: len(chunk.tokens) for chunk in scheduled.step.chunks}


def test_running_first_then_chunks_of_several_prompts_within_the_budget() -> None:
    scheduler = scheduler_of(num_blocks=32, budget=10)
    for number, length in enumerate((3, 12, 5)):
        scheduler.add(sequence_of(number, length))
    assert lengths(step(scheduler)) == {0: 3, 1: 7}
    assert lengths(step(scheduler)) == {0: 1, 1: 5, 2: 4}
    assert lengths(step(scheduler)) == {0: 1, 1: 1, 2: 1}


def test_only_the_last_known_token_has_a_logit_row() -> None:
    scheduler = scheduler_of(budget=6)
    scheduler.add(sequence_of(1, 10))
    first, second, third = (step(scheduler).step.chunks[0] for _ in range(3))
    assert (first.tokens, first.start, first.logit_rows) == ([100, 101, 102, 103, 104, 105], 0, [])
    assert (second.tokens, second.start, second.logit_rows) == ([106, 107, 108, 109], 6, [3])
    assert (third.tokens, third.start, third.logit_rows) == ([7], 10, [0])
    assert len(third.block_table) == 3


def test_prompt_logprobs_get_every_prompt_row_and_no_cache() -> None:
    scheduler = scheduler_of(budget=6)
    for sequence_id in (1, 2):
        prompt = Request(str(sequence_id), list(range(10)), SamplingParams(prompt_logprobs=0))
        sequence = Sequence.of(sequence_id, prompt)
        scheduler.add(sequence)
        chunks = [step(scheduler).step.chunks[0] for _ in range(3)]
        assert [chunk.logit_rows for chunk in chunks] == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3], [0]]
        assert sequence.num_cached_tokens == 0
        scheduler.remove(sequence)


def test_cached_tokens_are_reported_and_leave_one_to_compute() -> None:
    scheduler = scheduler_of()
    for expected in (0, 4, 4):
        sequence = sequence_of(1, 8)
        scheduler.add(sequence)
        assert step(scheduler).step.chunks[0].start == expected
        assert sequence.num_cached_tokens == expected
        scheduler.remove(sequence)


@pytest.mark.parametrize(("num_tokens", "max_tokens", "fits"), [(254, 1, 1), (255, 1, 1), (256, 1, 0), (257, 1, 0)])
def test_a_prompt_leaves_one_place_to_generate(num_tokens: int, max_tokens: int, fits: bool) -> None:
    """Bug A7: one documented rule; the refusal names the limit and both counts."""
    scheduler = scheduler_of(num_blocks=100)
    sequence = sequence_of(1, num_tokens, max_tokens=max_tokens)
    if fits:
        scheduler.add(sequence)
        return
    with pytest.raises(CapacityError, match=rf"{num_tokens} tokens .* max_model_len 256; .*max_tokens 1 .*at most 255"):
        scheduler.add(sequence)
    assert scheduler.num_waiting == 0


def test_a_prompt_only_to_be_scored_may_fill_the_context() -> None:
    scheduler = scheduler_of(num_blocks=100)
    scheduler.add(sequence_of(1, 256, max_tokens=0))
    with pytest.raises(CapacityError, match="at most 256"):
        scheduler.add(sequence_of(2, 257, max_tokens=0))


def test_a_prompt_larger_than_the_pool_is_refused_with_both_figures() -> None:
    scheduler = scheduler_of(num_blocks=8)
    scheduler.add(sequence_of(1, 32))
    with pytest.raises(CapacityError, match="33 tokens need 9 KV blocks, the whole pool has 8"):
        scheduler.add(sequence_of(2, 33))


def test_the_limit_is_the_context_or_the_pool() -> None:
    assert scheduler_of(num_blocks=8, max_model_len=256).max_sequence_tokens == 33
    assert scheduler_of(num_blocks=8, max_model_len=20).max_sequence_tokens == 20
    scheduler = scheduler_of(num_blocks=2, max_model_len=20)
    sequence = sequence_of(1, 8)
    scheduler.add(sequence)
    step(scheduler)
    assert scheduler.reached_limit(sequence)
    with pytest.raises(CapacityError, match="has to end"):
        step(scheduler)


def test_the_youngest_of_the_lowest_priority_gives_way() -> None:
    scheduler = scheduler_of(num_blocks=4)
    urgent, old, young = sequence_of(1, 4, priority=-1, arrival=9.0), sequence_of(2, 4), sequence_of(3, 4)
    for sequence in (young, old, urgent):
        scheduler.add(sequence)
    assert list(lengths(step(scheduler))) == [1, 2, 3], "admitted by priority, then arrival"
    assert list(lengths(step(scheduler))) == [1, 2], "one block is left for the second token of three"
    assert [sequence.num_preemptions for sequence in (urgent, old, young)] == [0, 0, 1]
    assert (scheduler.num_running, scheduler.num_waiting, scheduler.num_preemptions) == (2, 1, 1)
    assert young.num_computed_tokens == 0
    late = sequence_of(4, 1)
    scheduler.add(late)
    scheduler.remove(old)
    assert list(lengths(step(scheduler)))[:2] == [1, 3], "back at the front"


def test_an_earlier_planned_sequence_gives_way_within_the_same_step() -> None:
    scheduler = scheduler_of(num_blocks=4, budget=1, max_num_seqs=2)
    old, young = sequence_of(1, 4), sequence_of(2, 8)
    scheduler.add(young)
    while scheduler.cache.num_used_blocks < 2 or young.num_uncomputed_tokens > 1:
        step(scheduler)
    scheduler.max_num_batched_tokens = 8
    scheduler.add(old)
    step(scheduler)  # young grows to three blocks, old takes the fourth
    assert list(lengths(step(scheduler))) == [1], "young was planned first, but old needs its block"
    assert (young.num_preemptions, old.num_preemptions) == (1, 0)


def test_a_budget_below_one_token_each_goes_around() -> None:
    scheduler = scheduler_of(budget=3)
    for number in range(3):
        scheduler.add(sequence_of(number, 1))
    step(scheduler)
    scheduler.max_num_batched_tokens = 2
    turns = [list(lengths(step(scheduler))) for _ in range(3)]
    assert turns == [[0, 1], [2, 0], [1, 2]]


def test_removing_frees_blocks_at_once_wherever_the_sequence_is() -> None:
    scheduler = scheduler_of(max_num_seqs=1)
    running, waiting = sequence_of(1, 6), sequence_of(2, 6)
    scheduler.add(running)
    scheduler.add(waiting)
    scheduled = scheduler.schedule()
    assert scheduled is not None
    scheduler.remove(waiting)
    scheduler.remove(running)  # while its step runs
    scheduler.remove(running)  # twice does no harm
    scheduler.advance(scheduled)
    assert (scheduler.num_running, scheduler.num_waiting, scheduler.cache.num_used_blocks) == (0, 0, 0)
    assert scheduler.schedule() is None
    scheduler.cache.check()


def test_forks_share_the_prompt_and_copy_when_they_write() -> None:
    scheduler = scheduler_of()
    parent = sequence_of(1, 6, n=3)
    children = [Sequence.of(1 + index, parent.request, index) for index in (1, 2)]
    scheduler.add(parent)
    scheduled = scheduler.schedule()
    assert scheduled is not None
    scheduler.advance(scheduled)
    scheduler.fork(parent, children)
    assert scheduler.cache.num_used_blocks == 2
    for sequence in (parent, *children):
        sequence.append_token(7, 0.0)
    second = step(scheduler)
    assert len(second.step.block_copies) == 2
    assert lengths(second) == {1: 1, 2: 1, 3: 1}
    assert [child.first_scheduled_seconds for child in children] == [parent.first_scheduled_seconds] * 2


@pytest.mark.parametrize("name", ["max_num_seqs", "max_num_batched_tokens", "max_model_len"])
def test_limits_below_one_are_refused_by_name(name: str) -> None:
    limits = {"max_num_seqs": 1, "max_num_batched_tokens": 1, "max_model_len": 1, name: 0}
    with pytest.raises(InvalidField, match=name):
        Scheduler(KVCache(1, 1), **limits)


def test_a_decode_step_of_eight_costs_little() -> None:
    """The design allows 150 us of engine work per step at 8 sequences; the best steps ignore the neighbours."""
    scheduler = scheduler_of(num_blocks=700, block_size=16, budget=2048, max_model_len=2000)
    sequences = [sequence_of(number, 1000) for number in range(8)]
    for sequence in sequences:
        scheduler.add(sequence)
    while any(not sequence.num_output_tokens for sequence in sequences):
        step(scheduler)
    seconds = []
    for _ in range(200):
        start = time.perf_counter()
        scheduled = scheduler.schedule()
        assert scheduled is not None
        scheduler.advance(scheduled)
        seconds.append(time.perf_counter() - start)
        assert len(scheduled.sequences) == 8
        for sequence in sequences:
            sequence.append_token(random.randrange(1000), 0.0)
    assert sorted(seconds)[20] < 150e-6
