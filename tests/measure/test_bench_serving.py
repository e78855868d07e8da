"""The load client against a real server: open loop, every answer whole, refusals and timeouts told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.core.errors import InvalidField, OctavoError
from octavo.engine.async_engine import AsyncEngine
from octavo.engine.build import build_engine
from octavo.engine.config import EngineConfig
from octavo.measure.bench.goodput import parse_limits, summarize
from octavo.measure.bench.http_stream import Endpoint, ServerRefused
from octavo.measure.bench.load import Load, RequestRecord
from octavo.measure.bench.schedule import PlannedRequest
from octavo.measure.bench.serving import ServingWork, Target, measure_serving
from tests.checkpoints import make_tiny
from tests.serve.live import MODEL, LiveServer, serving


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny("llama", tmp_path_factory.mktemp("served") / "tiny", max_position_embeddings=4096)


@pytest.fixture(scope="module")
def live(model: Path) -> Iterator[LiveServer]:
    with serving(AsyncEngine(build_engine(EngineConfig(model, max_num_seqs=2)).engine)) as server:
        yield server


def load(live: LiveServer, requests: list[PlannedRequest], name: str = MODEL, timeout: float = 60.0):
    return asyncio.run(Load(Endpoint.parse(live.url), name, timeout).run(requests))


def test_requests_leave_at_their_time_answered_or_not(live: LiveServer) -> None:
    """Two at a time are served; the eight leave within 0.35 s all the same, and every one is answered whole."""
    requests = [PlannedRequest(0.05 * place, [5 + place] * 9, 40) for place in range(8)]
    records = load(live, requests)
    assert [each.error for each in records] == [None] * 8
    assert [each.num_output_tokens for each in records] == [40] * 8
    for planned, record in zip(requests, records, strict=True):
        assert planned.at_seconds <= record.sent < planned.at_seconds + 1.0
        assert record.sent < record.token_seconds[0] <= record.token_seconds[-1] <= record.finished
        assert record.tpot is not None
        assert record.ttft + 39 * record.tpot == pytest.approx(record.end_to_end)
    assert max(each.sent for each in records) < max(each.finished for each in records)


def test_cached_prompt_tokens_are_reported(live: LiveServer) -> None:
    prompt = list(range(10, 110))
    [first] = load(live, [PlannedRequest(0.0, prompt, 2)])
    [again] = load(live, [PlannedRequest(0.0, prompt, 2)])
    assert first.num_cached_tokens == 0
    assert again.num_cached_tokens == 96  # whole blocks of 16


def test_a_refusal_and_a_timeout_are_failures_with_reasons(live: LiveServer) -> None:
    [refused] = load(live, [PlannedRequest(0.0, [5], 2)], name="nobody")
    assert "HTTP 404" in str(refused.error)
    [late] = load(live, [PlannedRequest(0.0, [5, 6], 3500)], timeout=0.3)
    assert late.error == "no answer within the time limit"
    report = summarize([refused, late], {})
    assert report.num_completed == report.num_good == 0
    assert sorted(report.failures.values()) == [1, 1]
    live.wait_until_idle()  # the server noticed that the client left


def test_a_whole_measurement_of_a_running_server(live: LiveServer, model: Path) -> None:
    said: list[str] = []
    work = ServingWork(
        num_prompts=6, request_rate=20.0, input_len=8, output_len=4, goodput=("ttft:60000", "tpot:60000")
    )
    report, surroundings = measure_serving(Target(str(model), live.url), work, said.append)
    assert (report.num_completed, report.num_good, report.failures) == (6, 6, {})
    assert (report.num_prompt_tokens, report.num_output_tokens, report.num_cached_tokens) == (48, 24, 0)
    assert surroundings["served_model"] == MODEL
    hasty = ServingWork(num_prompts=3, input_len=8, output_len=4, request_rate=50, goodput=("ttft:0.001",))
    impossible, _ = measure_serving(Target(str(model), live.url), hasty, said.append)
    assert (impossible.num_completed, impossible.num_good) == (3, 0)


def test_what_the_server_cannot_take_is_refused_before_it_is_sent(live: LiveServer, model: Path) -> None:
    target = Target(str(model), live.url)
    with pytest.raises(InvalidField, match="--input-len: got '3 of 3 requests are beyond 4096"):
        measure_serving(target, ServingWork(num_prompts=3, input_len=4090), lambda text: None)
    with pytest.raises(InvalidField, match="the server has tiny"):
        measure_serving(Target(str(model), live.url, served_model_name="big"), ServingWork(1), lambda text: None)
    with pytest.raises(OctavoError, match=r"no server answers at 127\.0\.0\.1:9"):
        measure_serving(Target(str(model), "http://127.0.0.1:9"), ServingWork(1), lambda text: None)


def test_goodput_keeps_every_limit() -> None:
    """Three answers: in time, late to begin, slow to go on."""

    def answer(ttft: float, tpot: float) -> RequestRecord:
        return RequestRecord(1.0, 4, 1.0, [1.0 + ttft], 1.0 + ttft + 10 * tpot, num_output_tokens=11)

    records = [answer(0.1, 0.01), answer(0.9, 0.01), answer(0.1, 0.09)]
    report = summarize(records, parse_limits(["ttft:500", "tpot:50"]))
    assert report.num_good == 1
    assert report.seconds == pytest.approx(1.0)
    assert report.to_dict()["request_goodput"] == pytest.approx(1.0)
    assert summarize(records, parse_limits(["ttft:1000"])).num_good == 3


@pytest.mark.parametrize("text", ["ttft", "ttft:0", "itl:5", "ttft:soon"])
def test_limits_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(InvalidField, match="--goodput"):
        parse_limits([text])


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("localhost:8000", ("localhost", 8000, "")),
        ("https://h/v1/", ("h", 443, "")),
        ("http://h:1/a/v1", ("h", 1, "/a")),
    ],
)
def test_base_urls(url: str, place: tuple[str, int, str]) -> None:
    endpoint = Endpoint.parse(url)
    assert (endpoint.host, endpoint.port, endpoint.path) == place


def test_a_url_of_another_kind_is_refused() -> None:
    with pytest.raises(InvalidField, match="--base-url"):
        Endpoint.parse("ftp://host")


def test_an_answer_that_breaks_off_is_an_error() -> None:
    """A server that closes in the middle of a stream: `[DONE]` is missing."""

    async def half_an_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b'HTTP/1.1 200 OK\r\n\r\ndata: {"choices": [{"text": "a"}]}\n\n')
        await writer.drain()
        writer.close()

    async def client() -> list[object]:
        server = await asyncio.start_server(half_an_answer, "127.0.0.1", 0)
        async with server:
            endpoint = Endpoint("127.0.0.1", server.sockets[0].getsockname()[1])
            return [event async for event in endpoint.events("/v1/completions", {})]

    with pytest.raises(ServerRefused, match=r"before \[DONE\]"):
        asyncio.run(client())
