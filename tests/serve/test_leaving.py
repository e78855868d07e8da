"""A client that leaves frees its blocks, whatever it was waiting for. Bug C3."""

import json
import socket
import threading
import time

import pytest

from tests.scripted import scripted_async_engine
from tests.serve.live import MODEL, serving, wait_for

ENDLESS = [10] * 4000


@pytest.fixture(scope="module")
def server(tokenizer):
    engine = scripted_async_engine(
        tokenizer,
        lambda ids: " ten" if len(ids) < 40 else ENDLESS,
        max_model_len=4096,
        num_blocks=600,
        step_seconds=0.005,
        max_num_seqs=4,
        max_num_batched_tokens=64,
    )
    with serving(engine) as live:
        yield live


def send_and_leave(server, seconds, **fields) -> None:
    """POST a completion and close the socket after `seconds`, having read nothing."""
    body = json.dumps({"model": MODEL, "max_tokens": 2000, "logit_bias": {"2": -100}, **fields}).encode()
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        time.sleep(seconds)


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": [5] * 40},
        {"prompt": [5] * 40, "stream": True},
        {"prompt": [5] * 40, "n": 3},
        {"prompt": [5] * 40, "n": 3, "stream": True},
        {"prompt": [[5] * 40, [6] * 41]},
    ],
    ids=["whole", "stream", "n3", "n3-stream", "two-prompts"],
)
def test_blocks_are_free_within_two_seconds(server, fields):
    before = server.engine.stats.num_generation_tokens
    neighbour = threading.Thread(target=lambda: answers.append(server.complete("hi", max_tokens=5)))
    answers = []
    neighbour.start()
    send_and_leave(server, 0.3, **fields)
    neighbour.join(20)
    assert answers[0].choices[0].text == " ten"
    server.wait_until_idle(2.0)
    stopped_at = server.engine.stats.num_generation_tokens
    assert before < stopped_at < before + 2000
    time.sleep(0.1)
    assert server.engine.stats.num_generation_tokens == stopped_at


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_during_a_long_prefill(server, stream):
    """2,000 prompt tokens at 64 a step of 5 ms; the client leaves before the first token."""
    before = server.engine.stats.num_generation_tokens
    send_and_leave(server, 0.05, prompt=list(range(3, 203)) * 10, stream=stream)
    server.wait_until_idle(2.0)
    assert server.engine.stats.num_generation_tokens == before


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_while_queued(server, stream):
    """Four sequences fill the batch; a fifth waits, and leaves."""
    leaving = [
        threading.Thread(target=send_and_leave, args=(server, 0.8), kwargs={"prompt": [5] * 40, "n": 4}),
        threading.Thread(target=send_and_leave, args=(server, 0.3), kwargs={"prompt": [7] * 50, "stream": stream}),
    ]
    leaving[0].start()
    wait_for(lambda: server.engine.stats.num_running == 4, 5, "the batch did not fill")
    leaving[1].start()
    wait_for(lambda: server.engine.stats.num_waiting == 1, 5, "nothing waits")
    leaving[1].join(5)
    wait_for(lambda: server.engine.stats.num_waiting == 0, 2, "the queued request stayed")
    assert server.engine.stats.num_running == 4
    leaving[0].join(5)
    server.wait_until_idle(2.0)
