"""Models, texts and machines that are not as they should be, through the whole of `octavo quantize`.

Here: sizes that nothing divides, zeros, NaN, dead channels, a calibration of one token or of one token repeated,
damaged files, a full disk, Ctrl-C. Absurd outlier channels are in test_smoothquant.py and test_awq.py, a Hessian that
no damping saves in test_gptq.py, SIGKILL in test_resume.py, lying GGUF headers in tests/weights. docs/users-cases.md
lists every case of the field's issue trackers with its test.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from torch import Tensor

from octavo.api import quantize
from octavo.core.errors import CheckpointError, InvalidField, OctavoError, StorageFull
from octavo.core.storage import writing
from octavo.models.load import load_model
from octavo.ops.reference.batch import whole_prompts
from octavo.ops.reference.ops import ReferenceOps
from tests.checkpoints import make_tiny

SIZES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 32,
}  # fmt: skip
OPTIONS: dict[str, Any] = {"group": 32, "samples": 2, "sequence_length": 48, "measure": None, "say": lambda line: None}
Q0, UP1 = "model.layers.0.self_attn.q_proj.weight", "model.layers.1.mlp.up_proj.weight"


def damaged(directory: Path, change: Callable[[dict[str, Tensor]], None], **sizes: int) -> Path:
    """A tiny model whose tensors were changed."""
    make_tiny("llama", directory, **{**SIZES, **sizes})
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    return directory


def computes(directory: Path) -> Tensor:
    """The written model's logits, which must be finite."""
    found: Tensor = load_model(directory).model.forward(ReferenceOps(), whole_prompts([list(range(40, 70))]))
    assert found.isfinite().all()
    return found


def nothing_is_left(folder: Path, name: str) -> None:
    """Neither under the final name nor half written beside it; a journal may be."""
    left = [path.name for path in folder.iterdir() if name in path.name]
    assert set(left) <= {f"{name}.journal"}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text("".join(f"{i} grey geese, {i * i} in all. " for i in range(40)))
    return file


def test_sizes_that_no_group_divides(tmp_path: Path, text: Path) -> None:
    """Refused before anything is written, with what works; which then does."""
    odd = damaged(tmp_path / "odd", lambda tensors: None, hidden_size=76, intermediate_size=172, head_dim=38)
    with pytest.raises(InvalidField, match="no group size works, or `channel`"):
        quantize(odd, tmp_path / "out", **OPTIONS, calibration=text)
    nothing_is_left(tmp_path, "out")
    for bits in (2, 3):
        report = quantize(odd, tmp_path / f"out{bits}", **{**OPTIONS, "group": None}, bits=bits, calibration=text)
        assert "equals ours" in report.verification
        computes(tmp_path / f"out{bits}")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("method", ["gptq", "rtn"])
def test_weights_that_are_no_numbers_are_refused_by_name(value: float, method: str, tmp_path: Path, text: Path) -> None:
    def spoil(tensors: dict[str, Tensor]) -> None:
        tensors[UP1][3, 5] = value

    model = damaged(tmp_path / "source", spoil)
    calibration = text if method == "gptq" else None
    with pytest.raises(OctavoError, match=r"model\.layers\.1\.mlp\.up_proj"):
        quantize(model, tmp_path / "out", **OPTIONS, method=method, calibration=calibration)
    nothing_is_left(tmp_path, "out")


@pytest.mark.parametrize(
    "scheme", ["int", "w8a8", "w8a8-static", "fp8", "fp8-static", "fp8-block", "mxfp8", "nvfp4", "mxfp4"]
)
def test_zeros_stay_zeros_in_every_scheme(scheme: str, tmp_path: Path, text: Path) -> None:
    """A zero group, a zero row, a zero matrix: 0 / 0 is no scale (users' case 14)."""

    def blank(tensors: dict[str, Tensor]) -> None:
        tensors[Q0][:, 32:] = 0
        tensors[Q0][5] = 0
        tensors[UP1].zero_()

    model = damaged(tmp_path / "source", blank)
    calibration = text if scheme.endswith("static") else None
    options = {name: value for name, value in OPTIONS.items() if scheme == "int" or name != "group"}
    quantize(model, tmp_path / "out", **options, method="rtn", scheme=scheme, calibration=calibration)
    layers = load_model(tmp_path / "out").model.layers
    linears = {linear.name: linear.weight.dequantize() for layer in layers for linear in layer.linears()}
    assert not linears[UP1.removesuffix(".weight")].any()
    query = linears[Q0.removesuffix(".weight")]
    assert not query[:, 32:].any()
    assert not query[5].any()
    assert query[:5, :32].any()
    computes(tmp_path / "out")


def test_dead_channels_are_counted_and_the_rest_is_quantized(tmp_path: Path, text: Path) -> None:
    """A norm whose gain is 0 gives q, k and v an input that never is anything else (users' case 2)."""

    def kill(tensors: dict[str, Tensor]) -> None:
        tensors["model.layers.0.input_layernorm.weight"][[3, 40]] = 0

    report = quantize(damaged(tmp_path / "source", kill), tmp_path / "out", **OPTIONS, calibration=text)
    dead = {module.name: module.num_dead_inputs for module in report.modules}
    assert dead["model.layers.0.self_attn.q_proj"] == dead["model.layers.0.self_attn.v_proj"] == 2
    assert sum(dead.values()) == 6
    assert all(module.error < 0.1 for module in report.modules if module.num_tokens)
    computes(tmp_path / "out")


@pytest.mark.parametrize("content", ["a", "a" * 400])
def test_a_singular_calibration_still_gives_a_model(content: str, tmp_path: Path) -> None:
    """One token, or one token over and over: Hessians of rank one, which damping and dead columns must survive, and
    which is said (users' case 1)."""
    (tmp_path / "text.txt").write_text(content)
    source, lines = damaged(tmp_path / "source", lambda tensors: None), []
    options = {**OPTIONS, "say": lines.append}
    report = quantize(source, tmp_path / "out", **options, calibration=tmp_path / "text.txt")
    assert any("WARNING" in line for line in lines)
    assert all(module.damping for module in report.modules if module.method == "gptq")
    assert all(module.error < 0.5 for module in report.modules)
    quantize(source, tmp_path / "nearest", **OPTIONS, method="rtn")
    expected, nearest = computes(source), computes(tmp_path / "nearest")
    difference = computes(tmp_path / "out") - expected
    assert difference.square().mean() < 2 * (nearest - expected).square().mean()


def test_damaged_files_are_refused_at_once(tmp_path: Path) -> None:
    source = damaged(tmp_path / "source", lambda tensors: None)
    file = source / "model.safetensors"
    whole = file.read_bytes()
    for damage in (whole[: len(whole) // 2], whole[:100], b"", b"\xff" * 64 + whole[64:]):
        file.write_bytes(damage)
        with pytest.raises(CheckpointError, match=r"model\.safetensors"):
            quantize(source, tmp_path / "out", **OPTIONS, method="rtn")
    nothing_is_left(tmp_path, "out")


#: Like the command, but with no room for files above argv[2] bytes, or with Ctrl-C after argv[3] finished blocks.
_BROKEN_RUN = """
import os, resource, signal, sys, torch
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit that it is ignored
torch.set_num_threads(1)
from octavo.quantize.journal import Journal
most_bytes, last_block = int(sys.argv[2]), int(sys.argv[3])
if most_bytes:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
record = Journal.record
def record_and_interrupt(self, *arguments):
    record(self, *arguments)
    if self.num_finished_blocks == last_block:
        os.kill(os.getpid(), signal.SIGINT)
Journal.record = record_and_interrupt
from octavo.cli.main import main
main(sys.argv[4:])
"""


def broken_run(source: Path, output: Path, text: Path, most_bytes: int = 0, last_block: int = 0) -> Any:
    """`octavo quantize`, in a process that meets a full disk or Ctrl-C."""
    arguments = ["quantize", str(source), "-o", str(output), "--group", "32", "--samples", "2", "--sequence-length"]
    arguments += ["48", "--no-measure", "--calibration", str(text)]
    command = [sys.executable, "-c", _BROKEN_RUN, "-", str(most_bytes), str(last_block), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)


def test_a_full_disk_and_ctrl_c_leave_nothing_half_written(tmp_path: Path, text: Path) -> None:
    """Plain words, no traceback, nothing under the final name; each time the next run goes on, to the same bytes."""
    source, output = damaged(tmp_path / "source", lambda tensors: None), tmp_path / "out"
    interrupted = broken_run(source, output, text, last_block=1)
    assert interrupted.returncode == 130, interrupted.stderr
    assert "1 finished blocks are kept" in interrupted.stderr
    assert interrupted.stderr.rstrip().endswith("octavo: interrupted")
    nothing_is_left(tmp_path, "out")
    full = broken_run(source, output, text, most_bytes=80_000)  # blocks and states fit, the model's file does not
    assert full.returncode == 2, full.stderr
    assert "Traceback" not in full.stderr
    assert f"octavo: {output} could not be written: file too large" in full.stderr
    assert "resuming after 1 finished blocks" in full.stderr
    assert "2 finished blocks are kept" in full.stderr
    nothing_is_left(tmp_path, "out")
    resumed = quantize(source, output, **OPTIONS, calibration=text)
    assert resumed.num_resumed_blocks == 2
    quantize(source, tmp_path / "whole", **OPTIONS, calibration=text)
    assert (output / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()


def test_the_journal_meets_a_full_disk(tmp_path: Path, text: Path) -> None:
    source = damaged(tmp_path / "source", lambda tensors: None)
    full = broken_run(source, tmp_path / "out", text, most_bytes=10_000)
    assert full.returncode == 2, full.stderr
    assert "out.journal" in full.stderr
    assert "could not be written: file too large" in full.stderr
    nothing_is_left(tmp_path, "out")


def test_only_a_full_disk_is_called_one(tmp_path: Path) -> None:
    with pytest.raises(StorageFull, match="x could not be written: no space left on device"), writing(Path("x")):
        raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")
    with pytest.raises(PermissionError), writing(Path("x")):
        raise PermissionError(13, "Permission denied")
    with pytest.raises(ValueError, match="os error 2"), writing(Path("x")):
        raise ValueError("no such file (os error 2)")
