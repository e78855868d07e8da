"""The first promise: a request's tokens and log-probabilities do not depend on what shares its step, on cache hits,
on chunking or on preemption. Bit for bit, on a real model, by every executor."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from octavo.core.outputs import OutputDelta
from octavo.core.request import FinishReason, Request
from octavo.core.sampling_params import SamplingParams
from octavo.engine.engine import Engine
from octavo.models.load import LoadedModel, load_model
from octavo.ops.base import Executor
from octavo.ops.executor_plan import StepLimits
from octavo.ops.native.executor import NativeExecutor
from octavo.ops.native.packed_model import PackedModel, pack_model
from octavo.ops.reference.executor import ReferenceExecutor
from tests.ops.schemes import with_kv_scales

STORIES = Path(__file__).parents[3] / "shared/data/models/stories260k"
pytestmark = pytest.mark.skipif(not STORIES.exists(), reason=f"{STORIES} is absent")

Answer = tuple[list[int], list[dict], str]


@cache
def model() -> LoadedModel:
    return load_model(STORIES)


@cache
def packed_model(kv_dtype: str) -> PackedModel:
    loaded = load_model(STORIES).model
    return pack_model(with_kv_scales(loaded, "fp8") if kv_dtype == "fp8" else loaded)


class Kind:
    """The executor that engines of the running test get, and the smallest blocks it can have."""

    name = "reference"

    @classmethod
    def make(cls, num_blocks: int, block_size: int) -> Executor:
        if cls.name == "reference":
            return ReferenceExecutor(model().model, num_blocks, block_size)
        kv_dtype = cls.name.partition(" ")[2]
        limits = StepLimits(512, 32, 512)
        return NativeExecutor(packed_model(kv_dtype), num_blocks, block_size, limits, kv_dtype=kv_dtype, threads=2)

    @classmethod
    def small_block(cls) -> int:
        return 4 if cls.name == "reference" else 16


@pytest.fixture(autouse=True, params=["reference", "native float32", "native bfloat16", "native int8", "native fp8"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(Kind, "name", request.param)
    return request.param


def make_engine(num_blocks: int = 64, block_size: int = 16, max_model_len: int = 256, **options) -> Engine:
    loaded = model()
    executor = Kind.make(num_blocks, block_size)
    return Engine(executor, loaded.tokenizer, loaded.spec.vocab_size, max_model_len=max_model_len, **options)


def make_crowded_engine(**options) -> Engine:
    """One whose blocks hold little more than the longest of four sequences."""
    block_size = Kind.small_block()
    return make_engine(num_blocks={4: 14, 16: 4}[block_size], block_size=block_size, **options)


def prompt_of(num_tokens: int, start: int = 0) -> list[int]:
    text = (
        "Once upon a time there was a little girl named Lily. She had a big red ball and a small dog. One day they "
        "went to the park to play. The sun was warm. Tom saw a bird in the tree and said hello to it. "
    )
    ids = model().tokenizer.encode(text * 8)
    return [ids[0], *ids[1 + start : start + num_tokens]]


def greedy(**params) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "max_tokens": 12, "ignore_eos": True, "logprobs": 2, **params})


def run(engine: Engine, requests: list[Request], late: int = 0) -> dict[tuple[str, int], list[OutputDelta]]:
    """Adds the last `late` requests one by one, a step apart."""
    waiting = requests[len(requests) - late :]
    for request in requests[: len(requests) - late]:
        engine.add(request)
    news: dict[tuple[str, int], list[OutputDelta]] = {}
    while engine.has_work or waiting:
        if waiting:
            engine.add(waiting.pop(0))
        for delta in engine.step():
            news.setdefault((delta.request_id, delta.index), []).append(delta)
    engine.cache.check()
    assert engine.stats.num_used_blocks == 0
    return news


def answer(deltas: list[OutputDelta]) -> Answer:
    ids = [token for delta in deltas for token in delta.token_ids]
    logprobs = [position for delta in deltas for position in delta.logprobs or []]
    return ids, logprobs, "".join(delta.text for delta in deltas)


def solo(request: Request, **options) -> Answer:
    return answer(run(make_engine(**options), [request])[request.request_id, 0])


REQUESTS = [("a", 15), ("b", 16), ("c", 17), ("d", 31), ("e", 40), ("f", 1)]


def requests(**params) -> list[Request]:
    return [Request(name, prompt_of(length), greedy(**params)) for name, length in REQUESTS]


def expected() -> dict[str, Answer]:
    return _expected(Kind.name)


@cache
def _expected(kind: str) -> dict[str, Answer]:
    return {request.request_id: solo(request) for request in requests()}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_batched_tokens": 1},
        {"max_num_batched_tokens": 7},
        {"max_num_batched_tokens": 64},
        {"block_size": "small", "num_blocks": 256, "max_num_batched_tokens": 10},
        {"prefix_caching": False},
        {"max_num_seqs": 2},
    ],
    ids=str,
)
def test_batched_and_chunked_equal_alone(options: dict) -> None:
    if "block_size" in options:
        options = {**options, "block_size": Kind.small_block()}
    news = run(make_engine(**options), requests(), late=3)
    for name, _ in REQUESTS:
        assert answer(news[name, 0]) == expected()[name]


def test_cached_equals_cold_three_times_and_in_reverse() -> None:
    engine = make_engine()
    for order in (1, -1, 1):
        for request in requests()[::order]:
            deltas = run(engine, [request])[request.request_id, 0]
            assert answer(deltas) == expected()[request.request_id]
            assert deltas[-1].num_cached_tokens <= len(request.prompt_token_ids) - 1
    assert deltas[-1].num_cached_tokens == 0  # "f" has one token
    assert engine.stats.num_prefix_hit_tokens > 0


def test_bug_c4_preempted_equals_alone() -> None:
    engine = make_crowded_engine()
    alone = {request.request_id: solo(request) for request in requests(max_tokens=14)[:4]}
    news = run(engine, requests(max_tokens=14)[:4])
    assert engine.stats.num_preemptions > 0
    assert sum(deltas[-1].timing.num_preemptions for deltas in news.values() if deltas[-1].timing) > 0
    for name, wanted in alone.items():
        assert answer(news[name, 0]) == wanted
        assert len(wanted[0]) == len(wanted[1]) == 14


def test_random_answers_survive_batching_and_preemption() -> None:
    params = {"temperature": 1.2, "seed": 7, "top_p": 0.95, "frequency_penalty": 0.3, "max_tokens": 14}
    alone = {request.request_id: solo(request) for request in requests(**params)[:4]}
    engine = make_crowded_engine(max_num_batched_tokens=9)
    news = run(engine, requests(**params)[:4])
    assert engine.stats.num_preemptions > 0
    for name, wanted in alone.items():
        assert answer(news[name, 0]) == wanted


def test_bug_s1_n_choices_differ_and_repeat() -> None:
    params = {"n": 4, "seed": 7, "temperature": 1.2, "max_tokens": 24, "stop": ["."], "ignore_eos": False}
    first = run(make_engine(), [Request("r", prompt_of(9), greedy(**params))])
    again = run(make_engine(max_num_batched_tokens=3), [Request("r", prompt_of(9), greedy(**params))])
    texts = [answer(first["r", index])[2] for index in range(4)]
    assert len(set(texts)) >= 2
    assert [answer(again["r", index]) for index in range(4)] == [answer(first["r", index]) for index in range(4)]
    for deltas in first.values():
        assert [delta.finish_reason is not None for delta in deltas].count(True) == 1


def test_bug_s2_neighbours_change_nothing() -> None:
    neighbours = [
        Request("penalized", prompt_of(12), greedy(repetition_penalty=2.0)),
        Request("frequent", prompt_of(20, start=5), greedy(frequency_penalty=1.0)),
    ]
    wanted = Request("wanted", prompt_of(10), greedy())
    alone = solo(wanted)
    for order in ([wanted, *neighbours], [*neighbours, wanted]):
        assert answer(run(make_engine(), order)["wanted", 0]) == alone
    varied = set()
    for seed in range(5):
        random = Request("random", prompt_of(10), greedy(temperature=1.3, seed=seed))
        news = run(make_engine(), [random, wanted])
        assert answer(news["wanted", 0]) == alone
        varied.add(answer(news["random", 0])[2])
    assert len(varied) > 1


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("budget", [10, 512])
def test_bug_c2_prompt_logprobs_with_the_cache(caching: bool, budget: int) -> None:
    engine = make_engine(prefix_caching=caching, max_num_batched_tokens=budget)
    lengths = (15, 16, 17, 31, 32, 33, 40)
    known: dict[int, list] = {}
    for order in (lengths, lengths, lengths[::-1]):
        for length in order:
            request = Request("r", prompt_of(length), greedy(prompt_logprobs=1, max_tokens=2))
            deltas = run(engine, [request])["r", 0]
            scores = deltas[0].prompt_logprobs
            assert scores is not None
            assert scores[0] is None
            assert len(scores) == length
            assert all(token in position for token, position in zip(prompt_of(length)[1:], scores[1:], strict=True))
            assert all(entry.logprob <= 0 for position in scores[1:] for entry in position.values())
            assert deltas[-1].num_cached_tokens <= length - 1
            assert known.setdefault(length, [answer(deltas), scores]) == [answer(deltas), scores]
    assert known[15][1] == known[40][1][:15]


def test_bug_c2_a_prompt_with_its_own_answer_as_the_next_prompt() -> None:
    block_size = Kind.small_block()
    engine = make_engine(block_size=block_size)
    ids, logprobs, _ = solo(Request("r", prompt_of(24), greedy()), block_size=block_size)
    run(engine, [Request("r", prompt_of(24), greedy())])
    scored = run(engine, [Request("s", prompt_of(24) + ids, greedy(prompt_logprobs=2, max_tokens=0))])["s", 0]
    assert len(scored) == 1
    assert scored[0].token_ids == []
    assert scored[0].finish_reason is FinishReason.LENGTH
    assert scored[0].prompt_logprobs[24:] == logprobs  # scoring what was said gives what was said, to the bit
    followed = run(engine, [Request("t", prompt_of(24) + ids[:-1], greedy(max_tokens=1))])["t", 0]
    assert followed[0].token_ids == ids[-1:]
    assert followed[0].num_cached_tokens > 24


def test_bug_a7_one_rule_of_length() -> None:
    engine = make_engine(max_model_len=256)
    unlimited = run(engine, [Request("a", prompt_of(8), greedy(max_tokens=None, logprobs=None))])["a", 0]
    assert unlimited[-1].finish_reason is FinishReason.LENGTH
    assert sum(len(delta.token_ids) for delta in unlimited) == 256 - 8
    for length in (254, 255):
        one = run(engine, [Request("b", prompt_of(length), greedy(max_tokens=1))])["b", 0]
        assert len(one) == 1
    for length, max_tokens in ((256, 1), (257, 1), (256, None), (8, 253), (8, 249)):
        with pytest.raises(ValueError, match="256") as refused:
            engine.add(Request("c", prompt_of(length), greedy(max_tokens=max_tokens)))
        assert str(length) in str(refused.value)
        assert "unset" in str(refused.value) if max_tokens is None else str(max_tokens) in str(refused.value)
    assert len(run(engine, [Request("d", prompt_of(8), greedy(max_tokens=248, logprobs=None))])["d", 0]) == 248


@pytest.mark.parametrize("params", [{"top_k": 1, "temperature": 1.5}, {"temperature": 1e-5}, {"temperature": 1e-38}])
def test_bug_s3_equal_to_greedy(params: dict) -> None:
    for seed in range(3):
        news = run(make_engine(), requests(seed=seed, **params))
        for name, _ in REQUESTS:
            assert answer(news[name, 0]) == expected()[name]
