"""`octavo compare` and `quantize --report` as commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.cli.main import EXIT_USER_ERROR, main
from tests.measure.pages import PageReader

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
MODEL = SHARED / "models" / "stories260k"
TEXT = SHARED / "text" / "tinystories-sample.txt"

pytestmark = pytest.mark.skipif(not MODEL.exists(), reason="needs ../shared/data/models/stories260k")


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as left:
        main([str(each) for each in arguments])
    return int(left.value.code or 0)


def test_a_report_and_a_comparison_from_octavo_json_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No process is started: figures of this protocol are in the file, and speed is left out."""
    output, report, page = tmp_path / "int4", tmp_path / "report.html", tmp_path / "page.html"
    quantized = run(
        "quantize", MODEL, "-o", output, "--method", "rtn", "--group", "channel", "--eval-text", TEXT,
        "--eval-windows", 1, "--report", report, "--no-report-speed", "--report-beside", MODEL,
    )  # fmt: skip
    assert quantized == 0
    told = PageReader(report.read_text())
    assert "Bits against perplexity" in told.text
    assert "Error by layer" in told.text
    assert "stories260k is in no plot of quality: its quality was not measured" in told.text
    capsys.readouterr()
    options = ("--text", TEXT, "--windows", 1, "--against", MODEL, "--no-speed", "--html", page, "--json")
    assert run("compare", output, *options) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["loss"] == "KL"
    assert shown["checkpoints"][0]["quality_origin"] == "octavo.json"
    assert shown["checkpoints"][0]["pareto_size"] is True
    assert "Error by layer" in PageReader(page.read_text()).text


def test_wrong_words_are_refused_before_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("compare", tmp_path / "nothing") == EXIT_USER_ERROR
    assert "nothing" in capsys.readouterr().err
    assert run("compare", MODEL, "--html", tmp_path) == EXIT_USER_ERROR
    assert run("quantize", MODEL, "-o", tmp_path / "out", "--report-beside", MODEL) == EXIT_USER_ERROR
    assert "--report" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
