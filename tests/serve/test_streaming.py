"""Merging, server-sent events, and what happens when a client leaves."""

import asyncio
import json

import pytest

from octavo.serve.errors import invalid
from octavo.serve.streaming import ClientLeft, EventStream, encode, event, merge, unless_client_leaves


async def numbers(start, count, closed, pause=0.0):
    try:
        for value in range(start, start + count):
            await asyncio.sleep(pause)
            yield value
    finally:
        closed.append(start)


async def test_merge_gives_all_items_in_each_generators_order():
    closed = []
    merged = [pair async for pair in merge([numbers(0, 50, closed), numbers(100, 30, closed)])]
    assert [value for number, value in merged if number == 0] == list(range(50))
    assert [value for number, value in merged if number == 1] == list(range(100, 130))
    assert sorted(closed) == [0, 100]


async def test_closing_the_merge_ends_every_reader():
    closed = []
    merged = merge([numbers(0, 1000, closed, 0.001), numbers(5000, 1000, closed, 30)])
    await anext(merged)
    await merged.aclose()
    assert sorted(closed) == [0, 5000]


async def test_an_error_in_one_generator_ends_the_others():
    async def failing():
        yield 1
        raise invalid("prompt", "bad")

    closed = []
    with pytest.raises(Exception, match="prompt: bad"):
        async for _ in merge([failing(), numbers(7, 1000, closed, 30)]):
            pass
    assert closed == [7]


async def test_work_is_cancelled_when_the_client_leaves():
    cancelled = asyncio.Event()

    async def work():
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def receive():
        await asyncio.sleep(0.01)
        return {"type": "http.disconnect"}

    with pytest.raises(ClientLeft):
        await unless_client_leaves(receive, work())
    assert cancelled.is_set()


async def test_an_error_in_a_stream_is_an_event():
    async def events():
        yield event({"a": 1})
        raise invalid("x", "broke")

    sent, ended = [], []

    async def send(message):
        sent.append(message)

    async def receive():
        await asyncio.sleep(30)

    await EventStream(events(), lambda: ended.append(1))({"type": "http"}, receive, send)
    assert ended == [1]
    assert sent[0]["status"] == 200
    lines = b"".join(message.get("body", b"") for message in sent).decode().split("\n\n")
    assert lines[0] == 'data: {"a":1}'
    assert json.loads(lines[1][6:])["error"]["param"] == "x"
    assert lines[2:] == ["data: [DONE]", ""]


def test_encoding_is_strict():
    with pytest.raises(ValueError, match="JSON"):
        encode({"value": float("nan")})
    assert encode({"text": "Ærø 東京"}).decode() == '{"text":"Ærø 東京"}'
