"""`octavo serve` as a process: what it prints, how it drains, how it stops."""

import json
import re
import signal
import subprocess
import sys
import threading
import time

import httpx
import pytest

from tests.checkpoints import make_tiny

READY = re.compile(r"ready: (\S+) at (\S+)/v1")
NUM_NEW = 400


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    directory = make_tiny(
        "llama", tmp_path_factory.mktemp("served") / "tiny-llama", vocab_size=320, max_position_embeddings=8192
    )
    quality = {"perplexity": 21.5, "bits_per_weight": 4.4, "protocol": {"text": "wikitext2"}, "caveats": []}
    report = {"quality": quality, "caveats": ["from a Q4_1 source"], "modules": [{}]}
    (directory / "octavo.json").write_text(json.dumps(report))
    return directory


class Process:
    """A running `octavo serve`; `lines` are what it has printed."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "octavo.cli.main", "serve", *arguments]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self._ready = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stderr:
            self.lines.append(line)
            if READY.search(line) or "octavo:" in line:
                self._ready.set()

    def wait_until_ready(self) -> httpx.Client:
        assert self._ready.wait(90), self.lines
        found = READY.search(self.lines[-1])
        assert found, self.lines
        self.name = found[1]
        return httpx.Client(base_url=found[2], timeout=60)

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def long_stream(client: httpx.Client, model: str, num_tokens: int):
    body = {"model": model, "prompt": "hello", "max_tokens": num_tokens, "ignore_eos": True, "stream": True}
    return client.stream("POST", "/v1/completions", json=body)


def test_a_server_drains(model):
    """Sum, quality and URL are printed; after SIGTERM the stream ends whole, new requests get 503; exit code 0."""
    with Process(str(model), "--port", "0", "--memory", "2GiB") as server:
        client = server.wait_until_ready()
        printed = "".join(server.lines)
        assert server.name == "tiny-llama"
        for expected in ("= total", "--memory 2.0 GiB", "perplexity 21.500", "4.40 bits per weight", "Q4_1 source"):
            assert expected in printed
        assert client.get("/v1/models").json()["data"][0]["quality"]["perplexity"] == 21.5
        with long_stream(client, server.name, NUM_NEW) as stream:
            assert stream.status_code == 200
            lines = stream.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.05)
            with httpx.Client(base_url=client.base_url) as newcomer:
                refused = newcomer.post("/v1/completions", json={"model": server.name, "prompt": "hi"})
                assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_draining")
                assert newcomer.get("/health").status_code == 503
            events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        assert events[-1]["choices"][0]["finish_reason"] == "length"
        assert server.process.wait(30) == 0


def test_a_second_signal_stops_at_once(model):
    with Process(str(model), "--port", "0", "--host", "0.0.0.0", "--served-model-name", "other") as server:
        client = server.wait_until_ready()
        assert any("warning" in line and "--api-key" in line for line in server.lines)
        assert server.name == "other"
        with long_stream(client, "other", 8000) as stream:
            assert stream.status_code == 200
            next(stream.iter_lines())
            for _ in range(2):
                server.process.send_signal(signal.SIGTERM)
                time.sleep(0.1)
            server.process.wait(8)
