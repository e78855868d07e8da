"""Statistics on disk: made once, found again, of this model and this text only, whole after a kill."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from octavo.api import calibrate, quantize
from octavo.core.errors import CheckpointError, InvalidField
from octavo.models.load import load_model
from octavo.quantize import statistics_cache as room
from octavo.quantize.calibration import load_calibration
from octavo.quantize.statistics import InputStatistics
from octavo.quantize.statistics_cache import StatisticsCache, StatisticsKey, collect_statistics, statistics_bytes
from tests.checkpoints import make_tiny

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
MODEL, TEXT = SHARED / "models" / "stories260k", SHARED / "text" / "tinystories-sample.txt"
needs_model = pytest.mark.skipif(not MODEL.exists(), reason="needs ../shared/data/models/stories260k")

#: Filled in by `_text`: a short text, so that reading it takes no time.
OPTIONS: dict[str, Any] = {"samples": 4, "sequence_length": 64, "say": lambda line: None}


@pytest.fixture(autouse=True, scope="module")
def _text(tmp_path_factory: pytest.TempPathFactory) -> None:
    if TEXT.exists():
        file = tmp_path_factory.mktemp("text") / "stories.txt"
        file.write_text(TEXT.read_text()[:6000])
        OPTIONS["calibration"] = str(file)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> StatisticsCache:
    """Statistics of the trained model, not to be changed."""
    return calibrate(MODEL, output=tmp_path_factory.mktemp("statistics") / "s", **OPTIONS)


def _statistics(num_inputs: int, seed: int) -> InputStatistics:
    statistics = InputStatistics(num_inputs)
    statistics.add(torch.randn(20, num_inputs, generator=torch.Generator().manual_seed(seed)))
    return statistics


def test_statistics_come_back_as_they_were(tmp_path: Path) -> None:
    key = StatisticsKey("model", "tokens", 1)
    cache = StatisticsCache.create(key, {"source": "text"}, tmp_path / "s")
    shared, own = _statistics(24, 0), _statistics(40, 1)
    cache.record({"q": shared, "k": shared, "down": own}, torch.zeros(1, 1))
    found = StatisticsCache.open(tmp_path / "s", "model").block(0)
    assert found["q"] is found["k"], "linears that read the same value share one entry"
    for name, statistics in (("q", shared), ("down", own)):
        assert found[name].num_tokens == 20
        for part in ("hessian", "mean_magnitude", "largest_magnitude"):
            assert torch.equal(getattr(found[name], part), getattr(statistics, part))
    assert not list((tmp_path / "s").glob("hidden-*"))


def test_mean_and_largest_magnitude_are_those_of_the_rows() -> None:
    x = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    statistics = InputStatistics(8)
    for rows in x.split(17):
        statistics.add(rows)
    torch.testing.assert_close(statistics.mean_magnitude, x.abs().mean(0))
    assert torch.equal(statistics.largest_magnitude, x.abs().amax(0))
    assert statistics.largest == float(x.abs().max())


@needs_model
def test_the_model_is_run_once(cache: StatisticsCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert abs(cache.num_bytes - statistics_bytes(load_model(MODEL).spec)) < 0.1 * cache.num_bytes
    runs: list[int] = []

    def run(*arguments: Any) -> torch.Tensor:
        runs.append(1)
        raise AssertionError("the model was run")

    monkeypatch.setattr(room, "decoder_layer", run)
    monkeypatch.setattr("octavo.quantize.rounding.decoder_layer", run)
    lines: list[str] = []
    assert calibrate(MODEL, output=cache.directory, **{**OPTIONS, "say": lines.append}).key == cache.key
    assert any("the model is not run" in line for line in lines)
    for bits in (4, 3):
        report = quantize(
            MODEL, tmp_path / f"q{bits}", statistics=cache.directory, bits=bits, group=None, measure=None,
            say=OPTIONS["say"],
        )  # fmt: skip
        assert {module.method for module in report.modules} == {"gptq", "rtn"}
        assert report.calibration is not None
        assert "statistics of the source model itself" in report.calibration["statistics"]
        assert report.calibration["num_tokens"] == 256
    assert runs == []
    with pytest.raises(AssertionError, match="the model was run"):
        calibrate(MODEL, output=tmp_path / "other", **{**OPTIONS, "samples": 5})


@needs_model
def test_cached_statistics_are_those_of_the_source(cache: StatisticsCache, tmp_path: Path) -> None:
    """GPTQ of the first block's q sees the same input either way, so its codes are the same."""
    common = {"bits": 4, "group": None, "measure": None, "say": OPTIONS["say"], "embedding_bits": 16}
    quantize(MODEL, tmp_path / "cached", statistics=cache.directory, **common)
    quantize(MODEL, tmp_path / "run", **{**OPTIONS, **common})
    cached, run = (load_model(tmp_path / name).model.layers for name in ("cached", "run"))
    assert torch.equal(cached[0].q.weight.codes(), run[0].q.weight.codes())
    last = (layers[4].mlp.down.weight.codes() for layers in (cached, run))
    assert not torch.equal(*last), "later ones are sequential"


@needs_model
def test_rtn_weighs_its_scales_with_statistics(cache: StatisticsCache, tmp_path: Path) -> None:
    common = {"method": "rtn", "bits": 3, "group": None, "measure": None, "say": OPTIONS["say"]}
    blind = quantize(MODEL, tmp_path / "blind", **common)
    weighed = quantize(MODEL, tmp_path / "weighed", statistics=cache.directory, **common)
    assert {module.num_tokens for module in weighed.modules[1:]} == {256}
    assert {module.num_tokens for module in blind.modules} == {0}


@needs_model
def test_the_key_changes_with_model_text_and_amount(cache: StatisticsCache, tmp_path: Path) -> None:
    other = make_tiny("llama-tied", tmp_path / "other")
    keys = [
        cache.key.sha256,
        calibrate(MODEL, output=tmp_path / "b", **{**OPTIONS, "samples": 3}).key.sha256,
        calibrate(MODEL, output=tmp_path / "c", **{**OPTIONS, "sequence_length": 65}).key.sha256,
        calibrate(other, output=tmp_path / "d", **OPTIONS).key.sha256,
    ]
    assert len(set(keys)) == 4
    with pytest.raises(InvalidField, match="of another model or text"):
        calibrate(MODEL, output=tmp_path / "b", **OPTIONS)
    with pytest.raises(InvalidField, match="are of another model"):
        quantize(MODEL, tmp_path / "q", statistics=tmp_path / "d", group=None, say=OPTIONS["say"])
    with pytest.raises(InvalidField, match="have a text already"):
        quantize(MODEL, tmp_path / "q", statistics=cache.directory, calibration=TEXT, group=None, say=OPTIONS["say"])
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    with pytest.raises(InvalidField, match="holds no statistics"):
        calibrate(MODEL, output=tmp_path / "full", **OPTIONS)


@needs_model
def test_recipes_that_run_the_model_are_refused(tmp_path: Path) -> None:
    for options, reason in (
        ({"method": "qat"}, "hidden states"),
        ({"transforms": ("awq",)}, "changes what the linears read"),
        ({"kv_cache": "int8"}, "KV cache"),
    ):
        with pytest.raises(InvalidField, match=reason):
            quantize(MODEL, tmp_path / "q", statistics="auto", group=None, **options, say=OPTIONS["say"])


_KILLED_RUN = """
import json, os, signal, sys, torch
torch.set_num_threads(1)
from octavo.api import calibrate
from octavo.quantize.statistics_cache import StatisticsCache
record = StatisticsCache.record
def record_and_die(self, statistics, hidden):
    record(self, statistics, hidden)
    if self.num_finished_blocks == 2:
        os.kill(os.getpid(), int(sys.argv[4]))
StatisticsCache.record = record_and_die
from pathlib import Path
calibrate(sys.argv[1], output=Path(sys.argv[2]), **json.loads(sys.argv[3]))
"""


@needs_model
@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_killed_run_goes_on_to_the_same_bytes(cache: StatisticsCache, tmp_path: Path, number: signal.Signals) -> None:
    options = {name: value for name, value in OPTIONS.items() if name != "say"}
    command = [sys.executable, "-c", _KILLED_RUN, str(MODEL), str(tmp_path / "killed"), json.dumps(options)]
    assert subprocess.run([*command, str(int(number))], capture_output=True, check=False, timeout=120).returncode != 0
    with pytest.raises(InvalidField, match="2 of 5 blocks"):
        quantize(MODEL, tmp_path / "q", statistics=tmp_path / "killed", group=None, say=OPTIONS["say"])
    lines: list[str] = []
    calibrate(MODEL, output=tmp_path / "killed", **{**OPTIONS, "say": lines.append})
    assert any("going on after 2 blocks" in line for line in lines)
    whole, killed = (
        {file.name: file.read_bytes() for file in directory.iterdir()}
        for directory in (cache.directory, tmp_path / "killed")
    )
    assert killed == whole


@needs_model
def test_a_damaged_file_is_named(cache: StatisticsCache, tmp_path: Path) -> None:
    damaged = StatisticsCache.create(cache.key, {}, tmp_path / "s")
    file = tmp_path / "s" / "block-0002.safetensors"
    file.write_bytes((cache.directory / file.name).read_bytes()[:1000])
    with pytest.raises(CheckpointError, match="block-0002"):
        damaged.block(2)


def test_experts_have_statistics_of_their_own(tmp_path: Path) -> None:
    loaded = load_model(make_tiny("qwen3-moe", tmp_path / "m", num_hidden_layers=1, mlp_only_layers=[]))
    calibration = load_calibration(loaded.tokenizer, None, 2, 64)
    cache = StatisticsCache.create(StatisticsKey("m", calibration.sha256, 1), calibration.to_dict(), tmp_path / "s")
    collect_statistics(loaded.model, calibration, cache)
    block = cache.block(0)
    assert set(block) == {linear.name for linear in loaded.model.layers[0].linears()}
    gates = [block[f"model.layers.0.mlp.experts.{expert}.gate_proj"] for expert in range(8)]
    assert sum(each.num_tokens for each in gates) == 3 * calibration.num_tokens
