"""Latency, throughput and shared prefixes of a real model: figures that agree with one another and with the engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo import LLM
from octavo.core.errors import InvalidField
from octavo.measure.bench.latency import LatencyPlan, measure_latency
from octavo.measure.bench.offline import facts
from octavo.measure.bench.prefix import PrefixWork, measure_prefix
from octavo.measure.bench.prompts import PromptSource, ordinary_token_ids
from octavo.measure.bench.summary import Summary, parse_percentiles
from octavo.measure.bench.throughput import measure_throughput
from tests.checkpoints import make_tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny("llama", tmp_path_factory.mktemp("bench") / "tiny")


@pytest.fixture(scope="module")
def llm(model: Path) -> LLM:
    return LLM(model, max_num_seqs=4, max_num_batched_tokens=64)


def test_latency_by_batch_and_context(llm: LLM) -> None:
    plan = LatencyPlan(batch_sizes=(1, 3), input_lens=(8, 40), output_len=5, num_iters=2)
    points = measure_latency(llm, plan)
    assert [(each.batch_size, each.input_len) for each in points] == [(1, 8), (3, 8), (1, 40), (3, 40)]
    for point in points:
        assert point.ttft.count == 2 * point.batch_size
        assert point.end_to_end.count == 2
        assert point.tpot is not None
        assert 0 < point.ttft.smallest < point.end_to_end.largest
        whole = point.ttft.smallest + 4 * point.tpot.smallest
        assert whole <= point.end_to_end.largest
    assert llm.engine.stats.num_prefix_hit_tokens == 0, "a measured prompt was found in the cache"


def test_one_token_has_no_time_per_output_token(llm: LLM) -> None:
    [point] = measure_latency(llm, LatencyPlan(input_lens=(8,), output_len=1, num_iters=1, num_iters_warmup=0))
    assert point.tpot is None
    assert point.to_dict()["tpot"] is None


@pytest.mark.parametrize(
    ("plan", "field"),
    [
        (LatencyPlan(input_lens=(200,), output_len=100), "--input-len"),
        (LatencyPlan(input_lens=(0,)), "--input-len"),
        (LatencyPlan(output_len=0), "--output-len"),
        (LatencyPlan(batch_sizes=(0,), input_lens=(8,), output_len=2), "--batch-size"),
        (LatencyPlan(num_iters=0), "--num-iters"),
        (LatencyPlan(num_iters_warmup=-1), "--num-iters-warmup"),
        (LatencyPlan(batch_sizes=(100_000,), input_lens=(8,), output_len=2), "--batch-size"),
    ],
)
def test_what_cannot_be_measured_is_refused_by_flag(llm: LLM, plan: LatencyPlan, field: str) -> None:
    with pytest.raises(InvalidField) as refused:
        measure_latency(llm, plan)
    assert refused.value.field == field


def test_throughput_counts_what_the_engine_did(llm: LLM) -> None:
    before = llm.engine.stats
    result = measure_throughput(llm, num_prompts=6, input_len=20, output_len=4)
    after = llm.engine.stats
    warm_up_tokens = 4 * 2
    assert after.num_generation_tokens - before.num_generation_tokens == 6 * 4 + warm_up_tokens
    assert result.output_tokens_per_second == pytest.approx(24 / result.seconds)
    assert result.total_tokens_per_second == pytest.approx(6 * 24 / result.seconds)
    assert result.num_steps >= 2 * 4  # six requests, four at a time
    assert result.peak_rss_bytes > 50e6


def test_a_shared_prefix_is_found_and_changes_no_token(model: Path, llm: LLM) -> None:
    """Steps of 64 tokens: the first prompt's 96 shared tokens are computed before the next is admitted."""
    work = PrefixWork(num_prompts=5, num_prefixes=1, prefix_len=96, suffix_len=8, output_len=6)
    cached, tokens = measure_prefix(llm, work, "cached")
    without = LLM(model, max_num_seqs=4, max_num_batched_tokens=64, prefix_caching=False)
    uncached, others = measure_prefix(without, work, "uncached")
    assert tokens == others
    assert len(tokens) == 5
    assert cached.num_cached_tokens >= 3 * 96
    assert uncached.num_cached_tokens == 0
    assert cached.num_prompt_tokens == 5 * 104


def test_groups_share_out_the_prompts() -> None:
    assert PrefixWork(num_prompts=7, num_prefixes=3).groups() == [3, 2, 2]


def test_facts_name_the_executor_and_the_sizes(llm: LLM) -> None:
    known = facts(llm)
    assert known["executor"] == type(llm.engine.executor).__name__
    assert known["num_kv_tokens"] == llm.memory_plan.num_kv_tokens > 0


def test_prompts_are_distinct_and_ordinary() -> None:
    ids = ordinary_token_ids(50, frozenset({0, 1, 7}))
    source = PromptSource(ids, seed=3)
    prompts = source.distinct(20, 12) + source.distinct(20, 12)
    assert len({tuple(prompt) for prompt in prompts}) == 40
    assert {token for prompt in prompts for token in prompt} <= set(range(50)) - {0, 1, 7}
    assert PromptSource(ids, seed=3).distinct(20, 12) == prompts[:20]


def test_percentiles_interpolate() -> None:
    summary = Summary.of([4.0, 1.0, 2.0, 3.0], parse_percentiles("90"))
    assert summary is not None
    assert (summary.mean, summary.median, summary.smallest, summary.largest) == (2.5, 2.5, 1.0, 4.0)
    assert summary.percentiles[90.0] == pytest.approx(3.7)
    assert Summary.of([]) is None
    with pytest.raises(InvalidField, match="--metric-percentiles"):
        parse_percentiles("50,101")
