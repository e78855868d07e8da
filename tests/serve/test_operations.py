"""What operators read: metrics, the model's card, the description of the API. Bug M1."""

import threading
import time

import pytest
from pydantic import TypeAdapter

from octavo.serve import responses
from tests.scripted import scripted_async_engine
from tests.serve.live import MODEL, serving

HISTOGRAMS = ("time_to_first_token", "queue", "end_to_end", "inter_token")
QUALITY = {"perplexity": 12.5, "kl_divergence": {"mean": 0.02}, "bits_per_weight": 4.31}
NUM_NEW = 20


@pytest.fixture(scope="module")
def server(tokenizer):
    engine = scripted_async_engine(
        tokenizer, [10] * 100, max_model_len=600, step_seconds=0.01, max_num_seqs=1, max_num_batched_tokens=128
    )
    with serving(engine, quality=QUALITY) as live:
        yield live


def sums(metrics, name):
    return metrics[f"octavo_{name}_seconds_sum"], metrics[f"octavo_{name}_seconds_count"]


def check_counters(before, after):
    for name, value in before.items():
        if "_total" in name or "_bucket" in name or name.endswith("_count"):
            assert after[name] >= value, name


def test_times_are_true(server):
    """M1: one more per request, sums near the client's own clock, queue <= first token <= whole."""
    before = server.metrics()
    start = time.monotonic()
    first = None
    for _ in server.complete([5] * 500, max_tokens=NUM_NEW, stream=True, extra_body={"ignore_eos": True}):
        first = first or time.monotonic() - start
    whole = time.monotonic() - start
    after = server.metrics()
    check_counters(before, after)
    grown = {}
    for name in HISTOGRAMS:
        (sum_before, count_before), (sum_after, count_after) = sums(before, name), sums(after, name)
        grown[name] = sum_after - sum_before
        assert count_after - count_before == (NUM_NEW - 1 if name == "inter_token" else 1)
    assert first is not None
    assert grown["queue"] <= grown["time_to_first_token"] <= grown["end_to_end"]
    assert grown["time_to_first_token"] == pytest.approx(first, abs=0.1)
    assert grown["end_to_end"] == pytest.approx(whole, abs=0.1)
    assert grown["time_to_first_token"] >= 0.04  # four steps of 128 tokens
    assert (
        after['octavo_time_to_first_token_seconds_bucket{le="0.001"}']
        < after["octavo_time_to_first_token_seconds_count"]
    )
    assert after["octavo_prompt_tokens_total"] - before["octavo_prompt_tokens_total"] == 500
    assert after["octavo_generation_tokens_total"] - before["octavo_generation_tokens_total"] == NUM_NEW
    finished = 'octavo_sequences_finished_total{finish_reason="length"}'
    assert after[finished] - before[finished] == 1


def test_the_second_of_two_queues(server):
    before = server.metrics()
    options = {"max_tokens": NUM_NEW, "extra_body": {"ignore_eos": True}}
    threads = [threading.Thread(target=server.complete, args=([7 + i] * 30,), kwargs=options) for i in (0, 1)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    during = server.metrics()
    assert during["octavo_requests_running"] == during["octavo_requests_waiting"] == 1
    assert 0 < during["octavo_kv_usage_ratio"] < 1
    for thread in threads:
        thread.join(20)
    after = server.metrics()
    check_counters(before, during)
    check_counters(during, after)
    queued = after["octavo_queue_seconds_sum"] - before["octavo_queue_seconds_sum"]
    assert queued > 0.1  # at least the rest of the first one's steps
    assert after["octavo_requests_running"] == after["octavo_requests_waiting"] == 0


def test_prefix_hits_are_counted(server):
    before = server.metrics()
    prompt = [9, 8, 7, 6] * 10
    for _ in range(2):
        cached = server.complete(prompt, max_tokens=1).usage.prompt_tokens_details.cached_tokens
    after = server.metrics()
    assert after["octavo_prefix_cache_hit_tokens_total"] - before["octavo_prefix_cache_hit_tokens_total"] == cached > 0
    assert after["octavo_prefix_cache_queried_tokens_total"] - before["octavo_prefix_cache_queried_tokens_total"] >= 80


def test_the_card_carries_the_measured_quality(server):
    (card,) = server.http.get("/v1/models").json()["data"]
    assert (card["id"], card["max_model_len"], card["quality"]) == (MODEL, 600, QUALITY)
    assert server.client.models.list().data[0].id == MODEL
    assert server.http.get("/version").json()["version"]


def test_openapi_describes_what_is_sent(server):
    """The answers validate against the published schemas; every honoured field is published."""
    document = server.http.get("/openapi.json").json()
    schemas = document["components"]["schemas"]

    def check(name, value):
        assert set(value) <= schemas[name]["properties"].keys()
        assert set(schemas[name].get("required", ())) <= set(value)
        TypeAdapter(getattr(responses, name)).validate_python(value, strict=True, extra="forbid")

    messages = [{"role": "user", "content": "hi"}]
    fields = {"max_tokens": 2, "logprobs": True, "top_logprobs": 1}
    check("ChatCompletion", server.post("/v1/chat/completions", messages=messages, **fields).json())
    for chunk in server.raw_events("/v1/chat/completions", messages=messages, **fields):
        check("ChatCompletionChunk", chunk)
    check("Completion", server.post("/v1/completions", prompt="hi", max_tokens=2, logprobs=1).json())
    check("ModelList", server.http.get("/v1/models").json())
    check("ErrorBody", server.http.get("/v1/nothing").json())
    taken = schemas["ChatCompletionRequest"]
    assert {"temperature", "stream_options", "top_k", "messages"} <= taken["properties"].keys()
    assert taken["additionalProperties"] is False
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/models", "/health", "/metrics", "/version"):
        assert path in document["paths"]
