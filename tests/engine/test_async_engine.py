"""The engine's thread: readers that stay, leave, are refused or come while it drains."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from octavo.core.errors import CapacityError, InvalidField
from octavo.core.outputs import OutputDelta
from octavo.core.request import FinishReason, Request
from octavo.core.sampling_params import SamplingParams
from octavo.engine import AsyncEngine, EngineStopped
from octavo.text.tokenizer import Tokenizer
from tests.scripted import scripted_async_engine
from tests.tokenizers import make_byte_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_directory(make_byte_tokenizer(Path(tmp_path_factory.mktemp("bytes"))))


@asynccontextmanager
async def running(tokenizer: Tokenizer, script: str, **options) -> AsyncIterator[AsyncEngine]:
    engine = scripted_async_engine(tokenizer, script, **options)
    try:
        yield engine
    finally:
        await engine.drain_and_stop(timeout=0)


def request(name: str, max_tokens: int = 50, prompt: tuple[int, ...] = (40, 41, 42), **params) -> Request:
    return Request(name, list(prompt), SamplingParams(max_tokens=max_tokens, ignore_eos=True, **params))


async def collect(engine: AsyncEngine, wanted: Request) -> list[OutputDelta]:
    return [delta async for delta in engine.generate(wanted)]


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


async def test_many_tasks_share_one_engine(tokenizer: Tokenizer) -> None:
    async with running(tokenizer, "abcdefghij") as engine:
        answers = await asyncio.gather(
            *(collect(engine, request(f"r{number}", 10, prompt=(50 + number,))) for number in range(20))
        )
        for deltas in answers:
            assert "".join(delta.text for delta in deltas) == "abcdefghij"
            assert deltas[-1].finish_reason is FinishReason.LENGTH
            timing = deltas[-1].timing
            assert timing is not None
            assert timing.first_scheduled is not None
            assert timing.first_token is not None
            assert timing.arrival <= timing.first_scheduled <= timing.first_token <= timing.last_token
            assert timing.last_token <= timing.finished
        await until(lambda: engine.stats.num_generation_tokens == 200)
        assert engine.stats.num_used_blocks == 0


async def test_errors_come_before_any_delta(tokenizer: Tokenizer) -> None:
    async with running(tokenizer, "abc", num_blocks=4, max_model_len=400) as engine:
        with pytest.raises(InvalidField):
            await engine.open(request("empty", prompt=()))
        with pytest.raises(CapacityError):
            await collect(engine, request("big", prompt=(40,) * 300))
        assert len(await collect(engine, request("good", 3))) == 3


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("leave", ["aclose", "cancel"])
async def test_bug_c3_a_reader_that_leaves_frees_its_blocks(tokenizer: Tokenizer, n: int, leave: str) -> None:
    async with running(tokenizer, "ab" * 900, max_model_len=2000, step_seconds=0.002) as engine:
        stays = asyncio.create_task(collect(engine, request("stays", 60)))
        started = asyncio.Event()

        async def read() -> None:
            stream = engine.generate(request("leaves", 1500, n=n))
            async for _ in stream:
                started.set()
                if leave == "aclose":
                    break
            await stream.aclose()

        reader = asyncio.create_task(read())
        await started.wait()
        if leave == "cancel":
            reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        await until(lambda: engine.stats.num_running <= 1)
        assert len(await stays) == 60
        await until(lambda: engine.stats.num_running == 0)
        generated = engine.stats.num_generation_tokens
        await asyncio.sleep(0.05)
        assert engine.stats.num_generation_tokens == generated
        assert engine.stats.num_used_blocks == 0


async def test_bug_c3_leaving_during_prefill_and_in_the_queue(tokenizer: Tokenizer) -> None:
    async with running(
        tokenizer, "ab" * 50, max_model_len=2000, max_num_batched_tokens=8, max_num_seqs=1, step_seconds=0.005
    ) as engine:
        prefill = asyncio.create_task(collect(engine, request("prefill", 10, prompt=(40,) * 1000)))
        await until(lambda: engine.stats.num_running == 1)
        queued = asyncio.create_task(collect(engine, request("queued", 10, prompt=(41,))))
        await until(lambda: engine.stats.num_waiting == 1)
        queued.cancel()
        await until(lambda: engine.stats.num_waiting == 0)
        prefill.cancel()
        await until(lambda: engine.stats.num_running == 0 and engine.stats.num_used_blocks == 0)
        assert engine.stats.num_generation_tokens == 0
        assert len(await collect(engine, request("next", 3))) == 3


async def test_abort_by_id_ends_the_stream(tokenizer: Tokenizer) -> None:
    async with running(tokenizer, "ab" * 900, max_model_len=2000) as engine:
        stream = await engine.open(request("r", 1500))
        await stream.__anext__()
        engine.abort("r")
        rest = [delta async for delta in stream]
        assert rest[-1].finish_reason is FinishReason.ABORT


async def test_drain_lets_the_running_end_and_refuses_the_new(tokenizer: Tokenizer) -> None:
    engine = scripted_async_engine(tokenizer, "ab" * 50, step_seconds=0.002)
    reader = asyncio.create_task(collect(engine, request("r", 60)))
    await until(lambda: engine.stats.num_running == 1)
    drain = asyncio.create_task(engine.drain_and_stop(timeout=10))
    await asyncio.sleep(0)
    with pytest.raises(EngineStopped):
        await engine.open(request("late"))
    assert await drain
    assert len(await reader) == 60


async def test_drain_aborts_what_takes_too_long(tokenizer: Tokenizer) -> None:
    engine = scripted_async_engine(tokenizer, "ab" * 900, max_model_len=2000, step_seconds=0.01)
    reader = asyncio.create_task(collect(engine, request("r", 1500)))
    await until(lambda: engine.stats.num_running == 1)
    assert not await engine.drain_and_stop(timeout=0.1)
    assert (await reader)[-1].finish_reason is FinishReason.ABORT


async def test_an_idle_engine_uses_no_processor_time_and_wakes_at_once(tokenizer: Tokenizer) -> None:
    async with running(tokenizer, "abc") as engine:
        await collect(engine, request("warm", 2))
        thread = next(each for each in threading.enumerate() if each is engine._thread)
        clock = time.pthread_getcpuclockid(thread.ident)
        before = time.clock_gettime(clock)
        await asyncio.sleep(0.3)
        assert time.clock_gettime(clock) - before < 0.02
        began = time.monotonic()
        await collect(engine, request("next", 1))
        assert time.monotonic() - began < 0.2
