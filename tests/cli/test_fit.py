"""`octavo calibrate` and `octavo fit` as users type them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from octavo.cli.main import build_app

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
MODEL, TEXT = SHARED / "models" / "stories260k", SHARED / "text" / "tinystories-sample.txt"

pytestmark = pytest.mark.skipif(not MODEL.exists(), reason="needs ../shared/data/models/stories260k")


def run(*arguments: str) -> str:
    result = CliRunner().invoke(build_app(arguments[0]), list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_calibrate_then_fit(tmp_path: Path) -> None:
    parts = [TEXT.read_text()[:6000], TEXT.read_text()[6000:9000]]
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for file, part in zip(files, parts, strict=True):
        file.write_text(part)
    text = ["--calibration", f"{files[0]}@3", "--calibration", str(files[1]), "--samples", "4"]
    text += ["--sequence-length", "64"]
    statistics = tmp_path / "s"
    found = json.loads(run("calibrate", str(MODEL), *text, "-o", str(statistics), "--json"))
    assert found["directory"] == str(statistics)
    assert [each["num_windows"] for each in found["calibration"]["sources"]] == [3, 1]
    options = ["--statistics", str(statistics), "--no-measure", "--json", "--no-zero-points"]
    report = json.loads(run("fit", str(MODEL), "-o", str(tmp_path / "m"), "--bytes", "150KB", *text, *options))
    size = (tmp_path / "m" / "model.safetensors").stat().st_size
    assert 148_500 < size == report["fit"]["file_bytes"] <= 150_000
    assert len(report["recipe"]["allocation"]) == 36
    assert not any("asymmetric" in str(group["scheme"]) for group in report["fit"]["groups"])
