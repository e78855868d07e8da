"""`octavo doctor`: the machine, and a model's kernels and roofline."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.cli.main import main
from octavo.cli.program_report import ranges
from tests.checkpoints import make_tiny


def doctor(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(["doctor", *arguments])
    out, err = capsys.readouterr()
    return left.value.code or 0, out, err


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory: Path = make_tiny("llama-tied", tmp_path_factory.mktemp("tiny"))
    return str(directory)


def test_machine(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = doctor(capsys, "--json")
    report = json.loads(out)
    assert code == 0
    assert report["native"]["chosen_unit"] in report["native"]["units"]


def test_kernels_of_equal_layers_are_one_line(directory: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = doctor(capsys, directory)
    assert code == 0
    (attention,) = [line for line in out.splitlines() if "q_proj+k_proj+v_proj" in line]
    assert " 0-2 " in attention
    assert "model.layers.*.self_attn" in attention


@pytest.mark.parametrize(("rows", "arguments"), [(1, []), (5, []), (20, ["--prefill"])])
def test_program(directory: str, rows: int, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    step = ["--rows", str(rows), "--context", "33", "--threads", "1"]
    code, out, _ = doctor(capsys, directory, "--program", *step, *arguments, "--json")
    assert code == 0
    facts = json.loads(out)
    profile = facts["profile"]
    assert (profile["num_rows"], profile["context"], facts["threads"]) == (rows, 33, 1)
    assert all(each["seconds"] > 0 for each in profile["instructions"])
    assert all(each["share_of_roofline"] >= 0 for each in profile["instructions"])
    assert profile["seconds"] == pytest.approx(sum(each["seconds"] for each in profile["kinds"]))
    (head,) = [each for each in profile["instructions"] if each["name"] == "lm_head"]
    logit_rows = 1 if "--prefill" in arguments else rows
    assert head["num_operations"] == 2 * 96 * 320 * logit_rows
    assert head["num_bytes"] >= 4 * 96 * 320


def test_program_for_people(directory: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = doctor(capsys, directory, "--program", "--rows", "2")
    assert code == 0
    assert "2 tokens (one token of each sequence) behind 16 positions" in out
    assert "of the roofline" in out


def test_refusals(directory: str, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        (["--program"], ["--program", "octavo doctor MODEL"]),
        ([directory, "--kv-dtype", "fp3"], ["kv_dtype", "fp3", "bfloat16"]),
        ([directory, "--isa", "sse9"], ["isa", "sse9", "portable"]),
    ):
        code, _, err = doctor(capsys, *arguments)
        assert code == 2
        assert all(word in err for word in words), err


def test_ranges() -> None:
    assert ranges([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"
    assert ranges([]) == ""
