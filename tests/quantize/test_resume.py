"""kill -9 in the middle of quantization, run again: it resumes, and the files equal those of an uninterrupted run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from octavo.api import quantize
from octavo.core.errors import InvalidField
from octavo.quantize.journal import Journal
from octavo.quantize.result import BlockResult

MODEL = Path(__file__).parents[2].parent / "shared" / "data" / "models" / "stories260k"
TEXT = Path(__file__).parents[2].parent / "shared" / "data" / "text" / "tinystories-sample.txt"

pytestmark = pytest.mark.skipif(not MODEL.exists(), reason="needs ../shared/data/models/stories260k")

OPTIONS = {"bits": 4, "group": None, "samples": 4, "sequence_length": 64, "calibration": str(TEXT), "measure": None}

#: Like the real run, but dies by SIGKILL once block 2 is in the journal: no handler and no cleanup runs. As many
#: threads as this process has: the journal's key holds their number, since bits depend on it.
_KILLED_RUN = """
import json, os, signal, sys, torch
torch.set_num_threads(1)
import octavo.quantize.journal as journal
from octavo.api import quantize
record = journal.Journal.record
def record_and_die(self, weights, hidden):
    record(self, weights, hidden)
    if self.num_finished_blocks == 3:
        os.kill(os.getpid(), signal.SIGKILL)
journal.Journal.record = record_and_die
quantize(sys.argv[1], sys.argv[2], **json.loads(sys.argv[3]))
"""


def _files(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir() if file.name != "octavo.json"}


@pytest.mark.parametrize("method", ["gptq", "rtn"])
def test_a_killed_run_resumes_to_the_same_bytes(tmp_path: Path, method: str) -> None:
    options = {**OPTIONS, "method": method, "calibration": OPTIONS["calibration"] if method == "gptq" else None}
    lines: list[str] = []
    whole = quantize(MODEL, tmp_path / "whole", **options, say=lines.append)
    assert whole.num_resumed_blocks == 0
    command = [sys.executable, "-c", _KILLED_RUN, str(MODEL), str(tmp_path / "killed"), json.dumps(options)]
    killed = subprocess.run(command, capture_output=True, check=False, timeout=120)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert not (tmp_path / "killed").exists()
    assert (tmp_path / "killed.journal").exists()
    resumed = quantize(MODEL, tmp_path / "killed", **options, say=lines.append)
    assert resumed.num_resumed_blocks == 3
    assert any("resuming after 3" in line for line in lines)
    assert _files(tmp_path / "killed") == _files(tmp_path / "whole")
    assert [report.to_dict() for report in resumed.modules] == [report.to_dict() for report in whole.modules]
    assert not (tmp_path / "killed.journal").exists()


def test_a_kill_at_any_moment_leaves_whole_files(tmp_path: Path) -> None:
    """A real process, killed from outside as soon as its first block is on disk."""
    output = tmp_path / "m"
    arguments = ["quantize", str(MODEL), "-o", str(output), "--group", "channel", "--no-measure", "--samples", "4"]
    arguments += ["--sequence-length", "64", "--calibration", str(TEXT)]
    command = [sys.executable, "-m", "octavo.cli.main", *arguments]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        first_block = tmp_path / "m.journal" / "block-0000.safetensors"
        while not first_block.exists() and process.poll() is None:
            time.sleep(0.005)
        process.kill()
    lines: list[str] = []
    quantize(MODEL, output, **OPTIONS, say=lines.append)
    quantize(MODEL, tmp_path / "whole", **OPTIONS, say=lines.append)
    assert _files(output) == _files(tmp_path / "whole")


def test_another_recipe_starts_over_and_says_so(tmp_path: Path) -> None:
    key = {"recipe": {"bits": 4}, "source": "s"}
    journal = Journal(tmp_path / "j", key)
    journal.record(BlockResult({}), {"hidden": torch.ones(3, 2)})
    again = Journal(tmp_path / "j", key)
    assert (again.num_finished_blocks, again.discarded) == (1, None)
    assert torch.equal(again.hidden()["hidden"], torch.ones(3, 2))
    other = Journal(tmp_path / "j", {**key, "recipe": {"bits": 3}})
    assert other.num_finished_blocks == 0
    assert other.discarded == "recipe changed"


def test_a_half_written_block_is_not_a_block(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", {})
    journal.record(BlockResult({}), {"hidden": torch.ones(1, 1)})
    (tmp_path / "j" / ".block-0001.safetensors.partial").write_bytes(b"half")
    again = Journal(tmp_path / "j", {})
    assert again.num_finished_blocks == 1
    again.record(BlockResult({}), {"hidden": torch.ones(1, 1)})
    assert Journal(tmp_path / "j", {}).num_finished_blocks == 2
    assert not list((tmp_path / "j").glob("*.partial"))


def test_whoever_may_read_a_new_file_may_read_a_checkpoint(tmp_path: Path) -> None:
    """safetensors makes files for their owner alone; a server may run as somebody else."""
    (tmp_path / "plain").touch()
    quantize(MODEL, tmp_path / "m", **{**OPTIONS, "method": "rtn", "calibration": None})
    for file in (tmp_path / "m").iterdir():
        assert file.stat().st_mode == (tmp_path / "plain").stat().st_mode, file.name


def test_the_source_is_never_the_output(tmp_path: Path) -> None:
    with pytest.raises(InvalidField, match="source itself"):
        quantize(MODEL, MODEL, **OPTIONS)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    with pytest.raises(InvalidField, match="did not write"):
        quantize(MODEL, tmp_path / "full", **OPTIONS)
