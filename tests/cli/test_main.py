"""The command line as a whole: help, exit codes, plain errors; and `doctor` and `pull`, which need no model."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from octavo import __version__
from octavo.cli.main import COMMANDS, main
from tests.house import PACKAGE, ROOT


def octavo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "octavo.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int | str | None, str, str]:
    """Exit code, stdout and stderr of a command run here."""
    with pytest.raises(SystemExit) as leaving:
        main(arguments)
    printed = capsys.readouterr()
    return leaving.value.code, printed.out, printed.err


def test_every_command_is_on_disk_and_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["--help"], capsys)
    assert code == 0
    assert [name for name in COMMANDS if name not in out] == []
    on_disk = {path.stem for path in (PACKAGE / "cli").glob("*.py") if "def run(" in path.read_text()}
    assert on_disk == set(COMMANDS)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"], capsys)[:2] == (0, f"{__version__}\n")


def test_a_users_error_is_one_plain_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(["pull", "no-such-model", "--json"], capsys)
    assert (code, out) == (2, "")
    assert err.startswith("octavo: model: got 'no-such-model'; name a Hugging Face directory")
    assert "Traceback" not in err


def test_an_unknown_command_or_option_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["dance"], capsys)[0] == 2
    assert run(["doctor", "--loud"], capsys)[0] == 2


def test_interrupting_is_exit_code_130(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("octavo.cli.doctor.run", interrupted)
    assert run(["doctor"], capsys) == (130, "", "octavo: interrupted\n")


def test_a_bug_keeps_its_traceback(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("octavo.cli.doctor.run", broken)
    with pytest.raises(ZeroDivisionError):
        main(["doctor"])


def test_the_catalog_is_listed_as_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["pull", "--json"], capsys)
    assert code == 0
    assert [model["name"] for model in json.loads(out)["models"]] == ["smollm2-135m", "gemma3-270m"]


def test_doctor_tells_what_was_chosen_and_why() -> None:
    done = octavo("doctor", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert set(report) == {"octavo", "processor", "threads", "memory", "torch", "native"}
    native = report["native"]
    assert native["units"][native["chosen_unit"]] == "runs here"
    assert native["units"]["portable"] == "runs here"
    assert native["why"].startswith("the fastest unit that runs here")
    assert report["memory"]["total_bytes"] > report["memory"]["process_bytes"] > 0


def test_octavo_quantize_is_a_function_and_a_room() -> None:
    code = "import octavo, octavo.quantize.rtn; print(callable(octavo.quantize), octavo.quantize.rtn.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.stdout.split() == ["True", "octavo.quantize.rtn"], done.stderr
