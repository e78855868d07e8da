"""`octavo bench` as it is typed: one JSON object on stdout, progress on stderr, flags that fight are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.cli.main import main
from tests.checkpoints import make_tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_tiny("llama", tmp_path_factory.mktemp("bench") / "tiny"))


def bench(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int | str | None, str, str]:
    """Exit code, stdout and stderr."""
    with pytest.raises(SystemExit) as leaving:
        main(["bench", *arguments])
    printed = capsys.readouterr()
    return leaving.value.code, printed.out, printed.err


def result(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code, out, err = bench(capsys, *arguments, "--json")
    assert code == 0, err
    assert out.count("\n") == 1
    assert err
    found: dict[str, Any] = json.loads(out)
    assert found["benchmark"] == arguments[0]
    assert found["machine"]["num_cores"] > 0
    return found


def test_latency(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--batch-size", "2", "--input-len", "8", "--input-len", "16", "--output-len", "3", "--num-iters", "1")
    found = result(capsys, "latency", model, *options)
    assert [(each["batch_size"], each["input_len"]) for each in found["points"]] == [(2, 8), (2, 16)]
    assert found["engine"]["max_num_seqs"] == 2


def test_throughput_for_people(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = bench(
        capsys,
        "throughput",
        model,
        "--num-prompts",
        "3",
        "--input-len",
        "8",
        "--output-len",
        "3",
        "--max-num-seqs",
        "2",
    )
    assert code == 0
    assert "3 requests, 8 tokens in and 3 out each" in out
    assert "output tokens/s" in out
    assert "max_num_seqs 2" in out


def test_prefix_compares_tokens(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--num-prompts", "3", "--prefix-len", "48", "--suffix-len", "4", "--output-len", "3")
    found = result(capsys, "prefix", model, *options, "--max-num-batched-tokens", "48", "--memory", "2GiB")
    assert found["same_tokens"] is True
    assert found["cached"]["num_cached_tokens"] > 0 == found["uncached"]["num_cached_tokens"]
    alone = result(capsys, "prefix", model, *options, "--no-compare")
    assert (alone["uncached"], alone["same_tokens"]) == (None, None)


def test_serve_starts_a_server_and_stops_it(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.jsonl"
    entries = [{"timestamp": 40 * n, "input_length": 900, "output_length": 40, "hash_ids": [0, n]} for n in range(4)]
    trace.write_text("".join(json.dumps(each) + "\n" for each in entries))
    options = ("--trace", str(trace), "--num-prompts", "4", "--length-scale", "0.1", "--goodput", "e2el:60000")
    found = result(capsys, "serve", model, *options, "--max-num-seqs", "2", "--memory", "2GiB")
    assert (found["completed"], found["failures"], found["good_share"]) == (4, {}, 1.0)
    assert found["num_output_tokens"] == 4 * 4
    assert found["num_prompt_tokens"] == 4 * 90
    assert found["server_peak_rss_bytes"] > 50e6
    assert "2.0 GiB" in found["server"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--trace", "t.csv", "--request-rate", "2"), "--request-rate: got 2.0; cannot be given with --trace"),
        (("--length-scale", "0.5"), "--length-scale: got 0.5; has a meaning only with --trace"),
        (("--base-url", "h:1", "--memory", "1GiB"), "--memory: got '1GiB'; cannot be given with --base-url"),
        (("--api-key", "k"), "--api-key: got 'k'; has a meaning only with --base-url"),
        (("--num-prompts", "0"), "--num-prompts: got 0; must be at least 1"),
        (("--timeout-seconds", "0"), "--timeout-seconds: got 0.0; must be a number above 0"),
        (("--goodput", "ttft"), "--goodput: got 'ttft'; write NAME:MILLISECONDS"),
    ],
)
def test_flags_that_fight_are_refused(
    model: str, options: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = bench(capsys, "serve", model, *options)
    assert (code, out) == (2, "")
    assert words in err
    assert "starting" not in err


def test_help_shows_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = bench(capsys, "--help")
    assert code == 0
    assert all(name in out for name in ("latency", "throughput", "prefix", "serve"))
