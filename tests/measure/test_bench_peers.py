"""`benchmarks.peers` with the peers that every developer has: real workers, a tiny model; the table's arithmetic."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.peers.__main__ import main, setting
from benchmarks.peers.comparison import MEMORY, START, Comparison, fastest_variants
from benchmarks.peers.compiler import amx_is_unsafe, gcc_major
from benchmarks.peers.contender import Contender, Sizes
from benchmarks.peers.environment import Environment, SetupFailed
from benchmarks.peers.machine import ReadBandwidth
from benchmarks.peers.models import REPOSITORY
from benchmarks.peers.octavo import octavo_peer
from benchmarks.peers.peer import Peer, Variant
from benchmarks.peers.process import PeerFailed, PeerProcess, peer_variables
from benchmarks.peers.table import bandwidth_share, rows
from benchmarks.peers.transformers import TRANSFORMERS
from benchmarks.peers.workers.llama_cpp import shared_prefix
from benchmarks.peers.workload import STREAMS, TABLE, Workload, prompts_of
from tests.checkpoints import make_tiny

BROKEN = Peer("broken", Environment("broken", python_of_this_project=True), "no_such_worker", lambda models: [])
SIZES = {"max_num_seqs": 2, "max_model_len": 128, "num_kv_tokens": 512}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny("llama", tmp_path_factory.mktemp("peers") / "tiny")


@pytest.fixture(autouse=True)
def _logs_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.peers.environment.ROOT", tmp_path)
    monkeypatch.setattr("benchmarks.peers.process.ROOT", tmp_path)


def one_thread(peer: Peer) -> Peer:
    """A second thread brings nothing to a tiny model, and threads that spin cost minutes beside other work."""
    return dataclasses.replace(peer, variables={**peer.variables, "OMP_NUM_THREADS": "1"})


def test_two_workers_give_the_same_tokens(model: Path) -> None:
    """Greedy, three prompts two at a time, no early stop: Octavo and transformers agree token for token."""
    prompts = [[5 + place, 9, 40 + place, 7, 100] for place in range(3)]
    with PeerProcess(one_thread(octavo_peer({}))) as ours, PeerProcess(one_thread(TRANSFORMERS)) as theirs:
        facts = ours.load(model=str(model), **SIZES)
        theirs.load(model=str(model), **SIZES, dtype="float32")
        seconds, outputs = ours.run(prompts, 12)
        assert outputs == theirs.run(prompts, 12)[1]
        assert seconds > 0
        assert ours.peak_rss_bytes() > 50e6
        with pytest.raises(PeerFailed, match=r"octavo: \w+: .*500"):
            ours.run([[1] * 500], 4)
        assert ours.run(prompts, 2)[1] == [output[:2] for output in outputs], "it goes on after an error"
    assert facts["weight_bytes"] > 0


def test_a_worker_that_dies_is_told_with_its_last_words() -> None:
    with PeerProcess(BROKEN) as process, pytest.raises(PeerFailed, match=r"exit code 1: .*no_such_worker"):
        process.load()


def test_a_paused_worker_takes_no_time(model: Path) -> None:
    with PeerProcess(octavo_peer({}), limit_seconds=0.3) as process:
        process.pause()
        with pytest.raises(PeerFailed, match="no answer within"):
            process.load(model=str(model), **SIZES)
        stat = Path(f"/proc/{process._process.pid}/stat").read_text()
        assert stat.rpartition(")")[2].split()[0] == "T"


@pytest.mark.skipif(sys.platform != "linux", reason="a Linux promise")
def test_a_paused_worker_ends_with_its_comparison() -> None:
    """Even when the comparison is killed and closes nothing."""
    code = """
import os, signal, time
from pathlib import Path
from benchmarks.peers.octavo import octavo_peer
from benchmarks.peers.process import PeerFailed, PeerProcess
process = PeerProcess(octavo_peer({}))
try:
    process.load()
except PeerFailed:
    pass  # it is up: it answered that arguments are missing
process.pause()
print(process._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=False, cwd=REPOSITORY)
    stat = Path(f"/proc/{int(done.stdout)}/stat")
    deadline = time.monotonic() + 10
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] not in "ZX":
        assert time.monotonic() < deadline, "a stopped worker was left behind"
        time.sleep(0.05)


def test_rounds_measure_every_workload_and_drop_who_fails(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.peers.workload.TOKEN_IDS", range(5, 300))  # a small vocabulary
    workloads = [
        Workload("batch", "3 requests", "output", 3, 8, 4),
        Workload("decode", "decode", "decode", 1, 4, 30),
        Workload("prefill", "prefill", "prefill", 1, 32, 1),
    ]
    contenders = [
        Contender(one_thread(octavo_peer({})), Variant("tiny", model)),
        Contender(BROKEN, Variant("one", model)),
    ]
    comparison = Comparison(workloads, max_num_seqs=2)
    tiny = [Workload(each.key, each.name, each.measures, 1, 4, 2) for each in workloads]
    assert fastest_variants(contenders[:1], tiny, print)[0] == contenders[:1], "one variant needs no trial"
    comparison.run_round(contenders, 0, lambda text: None)
    assert set(comparison.figures) == {"batch", "prefill", START, MEMORY} | {"decode"} & set(comparison.figures)
    assert len(comparison.figures["batch"]["octavo tiny"]) == len(comparison.figures[START]["octavo tiny"]) == 1
    assert list(comparison.failures) == ["broken one"]


def test_ratios_are_to_the_best_peer() -> None:
    comparison = Comparison(TABLE, 16)
    comparison.figures = {
        "decode_16": {"octavo m4": [300.0, 320.0, 1.0], "llama.cpp Q4_0": [100.0, 160.0, 150.0], "vLLM": [90.0] * 3},
        "prefill_512": {"octavo m4": [50.0], "vLLM": [100.0]},
        "offline": {"vLLM": [1.0]},
    }
    comparison.facts = {"octavo m4": {"weight_bytes": 80_000_000}}
    found = {each.key: (each.best_peer, each.ratio, each.verdict) for each in rows(comparison)}
    assert found["decode_16"] == ("llama.cpp Q4_0", 2.0, "aim")
    assert found["prefill_512"] == ("vLLM", 0.5, "BELOW")
    assert found["offline"] == (None, None, "")
    assert bandwidth_share(comparison, [{80: 30e9}, {80: 32e9}, {80: 1e9}]) == pytest.approx(300 * 80e6 / 30e9)


def test_the_prefill_is_taken_out_of_a_decode() -> None:
    decode = Workload("decode", "decode", "decode", 4, 16, 65)
    seconds = {65: 2.6, 1: 1.0}
    assert decode.tokens_per_second(lambda prompts, new: seconds[new], prompts_of("a")) == pytest.approx(4 * 64 / 1.6)
    assert decode.tokens_per_second(lambda prompts, new: 1.0, prompts_of("a")) is None


def test_no_prompt_comes_twice() -> None:
    """Not in the warm-up, not in another workload of the run, not in another round."""
    seen: list[tuple[int, ...]] = []

    def run(prompts: list[list[int]], new_tokens: int) -> float:
        seen.extend(tuple(prompt) for prompt in prompts)
        return float(new_tokens)

    for round_index in range(2):
        for workload in (*TABLE, *STREAMS):
            prompts = prompts_of(f"{workload.key} {round_index}")
            workload.warm_up(run, prompts, 16)
            workload.tokens_per_second(run, prompts)
    assert len({prompt[:16] if len(prompt) != 544 else prompt for prompt in seen}) == len(seen)
    shared = [prompt[:512] for prompt in seen if len(prompt) == 544]
    assert len(set(shared)) == 4  # warm-up and measurement, two rounds


def test_sizes_hold_the_largest_work() -> None:
    sizes = Sizes.of(TABLE, 16)
    assert sizes.max_model_len >= 1024 + 129
    assert sizes.num_kv_tokens >= 16 * (544 + 64)


def test_what_prompts_share_is_found() -> None:
    assert shared_prefix([[1] * 40 + [2], [1] * 40 + [3]]) == [1] * 40
    assert shared_prefix([[1] * 40, [1] * 40]) == [1] * 39
    assert shared_prefix([[1] * 8 + [2], [1] * 8 + [3]]) == shared_prefix([[1] * 40]) == []


@pytest.mark.parametrize(
    ("version", "major", "unsafe"),
    [
        ("cc (Debian 12.2.0-14+deb12u1) 12.2.0", 12, True),
        ("gcc (GCC) 13.1.1 20230614", 13, False),
        ("Debian clang version 16.0.6 (15~deb12u1)", None, False),
    ],
)
def test_an_old_gcc_is_kept_from_amx(version: str, major: int | None, unsafe: bool) -> None:
    assert gcc_major(version) == major
    assert amx_is_unsafe(version, frozenset({"avx2", "amx_tile"})) is unsafe
    assert not amx_is_unsafe(version, frozenset({"avx2"}))


@pytest.mark.slow
def test_an_environment_says_why_it_is_not_there() -> None:
    environment = Environment("nothing", ("no-such-distribution-of-octavo==0",), ("--no-index",))
    assert "not set up" in str(environment.why_missing())
    with pytest.raises(SetupFailed, match="no-such-distribution-of-octavo"):
        environment.set_up(lambda line: None, 1)
    assert "set-up failed" in str(environment.why_missing())


def test_bandwidth_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.peers.machine.BANDWIDTH_MEBIBYTES", (4, 16))
    assert all(0.1e9 < each < 1e13 for each in ReadBandwidth().measure().values())


def test_the_stream_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    result = tmp_path / "result.json"
    medians = {f"streams_{count}": {"octavo m4": 50.0 * count, "vLLM": 20.0 * count} for count in (1, 4, 16)}
    machine = {"cpu": "some CPU", "cores": 2}
    result.write_text(json.dumps({"machine": machine, "sessions": {"streams": {"medians": medians}}}))
    assert main(["plot", str(result), "--figure", str(tmp_path / "streams.svg")]) == 0
    drawn = (tmp_path / "streams.svg").read_text()
    assert "<svg" in drawn
    assert len(drawn) > 5000


@pytest.mark.slow
def test_growth_measures_and_draws(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    started = time.monotonic()
    command = [sys.executable, "-m", "benchmarks.growth", "--model", str(model), "--figures", str(tmp_path), "--json"]
    command += ["--contexts", "32,64", "--sequences", "1,4", "--new-tokens", "4"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    found = json.loads(done.stdout)
    assert [each["context"] for each in found["context"]] == [32, 64]
    assert [each["num_sequences"] for each in found["sequences"]] == [1, 4]
    one, four = found["sequences"]
    assert four["kv_used_bytes"] == 4 * one["kv_used_bytes"] > 0
    assert sorted(path.name for path in tmp_path.glob("*.svg")) == ["growth-context.svg", "growth-sequences.svg"]
    assert time.monotonic() - started < 200


def test_peers_wait_as_they_do_by_themselves() -> None:
    """`import octavo` changes how OpenMP waits; that must not reach a peer."""
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
    variables = peer_variables(Peer("any", Environment("any"), "any", lambda models: [], {"A": "b"}))
    assert "OMP_WAIT_POLICY" not in variables
    assert variables["A"] == "b"
    assert variables["PATH"] == os.environ["PATH"]


def test_settings_for_octavo() -> None:
    assert setting("memory=1GiB") == ("memory", "1GiB")
    assert setting("max_num_batched_tokens=256") == ("max_num_batched_tokens", 256)
