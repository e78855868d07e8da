"""Checkpoints side by side: measured from the files by one protocol, in processes of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.api import Measurement, Page, compare, quantize
from octavo.core.errors import CheckpointError, InvalidField
from octavo.measure.compare.comparison import compare_checkpoints
from octavo.measure.compare.entry import open_entry
from octavo.measure.compare.quality import QualityPlan
from octavo.measure.compare.size_parts import size_parts
from octavo.measure.compare.worker import Worker
from octavo.models.load import open_model_checkpoint
from octavo.weights.checkpoint import Checkpoint
from tests.measure.pages import PageReader

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
MODEL = SHARED / "models" / "stories260k"
TEXT = SHARED / "text" / "tinystories-sample.txt"
PLAN = QualityPlan(str(TEXT), 2, 128, str(MODEL))

pytestmark = pytest.mark.skipif(not MODEL.exists(), reason="needs ../shared/data/models/stories260k")


def silent(line: str) -> None:
    return


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """By bits; their octavo.json was measured by `PLAN`."""
    folder, made = tmp_path_factory.mktemp("compared"), {}
    for bits in (8, 3):
        made[bits] = folder / f"int{bits}"
        measure = Measurement(TEXT, 2, 128)
        quantize(MODEL, made[bits], method="rtn", bits=bits, group=None, measure=measure, say=silent)
    return made


def test_files_are_measured_by_one_protocol_and_the_page_is_written(
    checkpoints: dict[int, Path], tmp_path: Path
) -> None:
    """The 3-bit file has figures by this protocol, which are taken; the source has none and is measured."""
    lines: list[str] = []
    names = [checkpoints[3], MODEL]
    page = tmp_path / "compare.html"
    comparison = compare(
        names, TEXT, windows=2, window_tokens=128, against=MODEL, rounds=1, threads=1, html=page, say=lines.append
    )
    small, source = comparison.entries
    assert (small.quality_origin, source.quality_origin) == ("octavo.json", "measured now")
    assert any("int3: its octavo.json was measured by this protocol" in line for line in lines)
    assert source.divergence == 0
    assert small.divergence is not None
    assert small.divergence > 0.1
    assert source.perplexity == pytest.approx(small.quality["comparison"]["base_perplexity"], rel=1e-6)
    for entry in comparison.entries:
        assert entry.problems == []
        assert entry.speed is not None
        assert entry.speed.decode_tokens_per_second > 10
        assert 50 << 20 < entry.speed.peak_rss_bytes < 4 << 30
        assert sum(entry.size_parts.values()) == entry.weight_bytes
    assert [entry.name for entry in comparison.by_size()] == ["int3", "stories260k"]
    assert "int3" in str(comparison)
    assert "octavo.json" in str(comparison)
    assert json.loads(json.dumps(comparison.to_dict()))["checkpoints"][1]["quality"]["protocol"]["num_windows"] == 2
    assert "stories260k" in PageReader(page.read_text()).text


def test_figures_of_another_protocol_are_not_taken(checkpoints: dict[int, Path]) -> None:
    from octavo.measure.compare.quality import is_by_protocol

    entry, name = open_entry(checkpoints[8]), str(checkpoints[8])
    assert is_by_protocol(entry, name, PLAN, 128)
    assert not is_by_protocol(entry, name, PLAN, 129)
    assert not is_by_protocol(entry, name, QualityPlan(str(TEXT), 3, 128, str(MODEL)), 128)
    assert not is_by_protocol(entry, name, QualityPlan(str(TEXT), 2, 128, str(checkpoints[3])), 128)
    assert not is_by_protocol(entry, name, QualityPlan(None, 2, 128, str(MODEL)), 128)
    assert is_by_protocol(entry, name, QualityPlan(str(TEXT), 2, 128, None), 128)


def test_figures_of_other_files_are_not_taken(checkpoints: dict[int, Path], tmp_path: Path) -> None:
    """An octavo.json that was copied beside other weights says nothing of them."""
    for file in checkpoints[8].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "octavo.json").write_bytes((checkpoints[3] / "octavo.json").read_bytes())
    entry = open_entry(tmp_path)
    assert entry.quality is None
    assert "of files of another size" in entry.problems[0]
    (tmp_path / "octavo.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"octavo\.json"):
        open_entry(tmp_path)


def test_ctrl_c_keeps_what_is_measured(checkpoints: dict[int, Path]) -> None:
    def interrupt(line: str) -> None:
        raise KeyboardInterrupt

    models = [str(checkpoints[8]), str(checkpoints[3])]
    comparison = compare_checkpoints(models, PLAN, None, say=interrupt)
    assert comparison.interrupted
    first, second = comparison.entries
    assert first.quality is not None
    assert first.quality_origin == "octavo.json"
    assert second.weight_bytes < first.weight_bytes
    assert "Interrupted" in str(comparison)


def test_a_checkpoint_that_cannot_be_measured_keeps_its_line(checkpoints: dict[int, Path], tmp_path: Path) -> None:
    for file in checkpoints[8].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "hidden_act": "relu6"}))
    sent: list[Any] = []
    worker = Worker(sent.append)
    answer = worker.answer({"do": "load", "model": str(tmp_path), "plan": {}, "threads": 1})
    assert "hidden_act" in answer["error"]
    answer = worker.answer({"do": "evaluate", "arguments": {**PLAN.to_dict(), "model": str(checkpoints[8])}})
    assert answer["result"]["protocol"]["window_tokens"] == 128
    assert sent == [{"progress": [1, 2]}, {"progress": [2, 2]}]


def test_plans_that_cannot_be_honoured_are_refused_before(checkpoints: dict[int, Path], tmp_path: Path) -> None:
    eight = str(checkpoints[8])
    for names, options, field in (
        ([eight, eight], {}, "checkpoints"),
        ([], {}, "checkpoints"),
        ([eight], {"text": tmp_path / "missing.txt"}, "text"),
        ([eight], {"windows": 0}, "windows"),
        ([eight], {"rounds": 0}, "rounds"),
        ([eight], {"html": tmp_path / "x.pdf"}, "html"),
    ):
        with pytest.raises(InvalidField, match=field):
            compare(names, say=silent, **options)
    with pytest.raises(InvalidField, match="html"):
        quantize(MODEL, tmp_path / "out", method="rtn", group=None, page=Page(tmp_path / "x.pdf"), say=silent)
    assert not (tmp_path / "out").exists()


def test_parts_of_a_file(checkpoints: dict[int, Path]) -> None:
    parts = size_parts(open_model_checkpoint(checkpoints[3]))
    checkpoint: Checkpoint = open_model_checkpoint(MODEL)
    linears = [name for name in checkpoint.names() if "proj" in name]
    num_weights = sum(checkpoint.shape(name)[0] * checkpoint.shape(name)[1] for name in linears)
    outputs = sum(checkpoint.shape(name)[0] for name in linears)
    assert parts["codes"] == num_weights * 3 // 8
    assert parts["scales and zero points"] >= 2 * outputs
    assert parts["embedding and head: codes"] == 512 * 64
    assert next(iter(size_parts(checkpoint))) == "dense matrices"
