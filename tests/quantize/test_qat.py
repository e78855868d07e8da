"""Training of blocks: what is exact, what gets better, and that a killed run ends with the same bytes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from octavo.api import quantize
from octavo.models.decoder import decoder_layer
from octavo.models.load import load_model
from octavo.ops.reference.batch import whole_prompts
from octavo.quantize.bulk_ops import BulkOps
from octavo.quantize.pieces import cut, hold_out, shuffled
from octavo.quantize.schedule import EarlyStop, cosine, ramp, straight
from octavo.quantize.training_ops import TrainingOps
from tests.checkpoints import make_tiny
from tests.quantize import trained

OPTIONS = {"bits": 3, "group": None, "samples": 8, "sequence_length": 64, "calibration": str(trained.TEXT)}

#: Dies by SIGKILL at an update that is in the middle of a block, or of distillation.
_KILLED_RUN = """
import json, os, signal, sys, torch
torch.set_num_threads(1)
from octavo.quantize.updates import Updates
from octavo.api import quantize
step, countdown = Updates.step, [int(sys.argv[4])]
def step_and_die(self, number):
    step(self, number)
    countdown[0] -= 1
    if countdown[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
Updates.step = step_and_die
quantize(sys.argv[1], sys.argv[2], **json.loads(sys.argv[3]), measure=None)
"""


def kill_and_resume(directory: Path, options: dict[str, Any], num_updates: int) -> int:
    """Blocks that the resumed run found, after asserting that its files are those of a whole run."""
    whole, killed = directory / "whole", directory / "killed"
    quantize(trained.MODEL, whole, **options, measure=None, say=lambda line: None)
    command = [
        sys.executable,
        "-c",
        _KILLED_RUN,
        str(trained.MODEL),
        str(killed),
        json.dumps(options),
        str(num_updates),
    ]
    process = subprocess.run(command, capture_output=True, check=False, timeout=240)
    assert process.returncode == -signal.SIGKILL, process.stderr.decode()
    report = quantize(trained.MODEL, killed, **options, measure=None, say=lambda line: None)
    files = [
        {file.name: file.read_bytes() for file in each.glob("*") if file.name != "octavo.json"}
        for each in (whole, killed)
    ]
    assert files[0] == files[1]
    return report.num_resumed_blocks


@trained.needs_model
def test_a_run_killed_within_a_block_ends_with_the_same_bytes(tmp_path: Path) -> None:
    assert kill_and_resume(tmp_path, {**OPTIONS, "method": "qat", "steps": 4}, num_updates=10) == 2


@trained.needs_model
@pytest.mark.parametrize("bits", [2, 3])
def test_better_than_gptq_on_other_text(bits: int) -> None:
    ours, theirs = (trained.block_errors(method=method, bits=bits) for method in ("qat", "gptq"))
    assert bool((ours < theirs).all())
    assert trained.divergence(method="qat", bits=bits) < 0.8 * trained.divergence(method="gptq", bits=bits)
    assert trained.perplexity(method="qat", bits=bits) < trained.perplexity(method="gptq", bits=bits)


@pytest.mark.parametrize("family", ["qwen3", "gemma3", "qwen3-moe", "mixtral"])
def test_training_ops_compute_what_the_bulk_ops_do(tmp_path: Path, family: str) -> None:
    """And everything they compute has a gradient: head norms, both activations, windows, experts."""
    model = load_model(make_tiny(family, tmp_path / "m")).model
    batch = whole_prompts([list(range(3, 40)), list(range(50, 60))])
    x = BulkOps().embed(model.embedding, batch).requires_grad_()
    for layer in model.layers:
        expected = decoder_layer(BulkOps(), layer, x.detach(), batch)
        y = decoder_layer(TrainingOps({}), layer, x, batch)
        torch.testing.assert_close(y, expected, rtol=2e-5, atol=2e-5)
        (gradient,) = torch.autograd.grad(y.square().sum(), x)
        assert bool(torch.isfinite(gradient).all())
        assert float(gradient.abs().max()) > 0


def test_pieces_cover_every_token_once() -> None:
    lengths = [5, 30, 2, 70, 1, 1, 40]
    segments = [list(range(first, first + length)) for first, length in enumerate(lengths)]
    batch = whole_prompts(segments)
    pieces = cut(batch, 40)
    rows = [row for piece in pieces for row in range(piece.rows.start, piece.rows.stop)]
    assert rows == list(range(sum(lengths)))
    assert [token for piece in pieces for token in piece.batch.tokens.tolist()] == batch.tokens.tolist()
    assert all(piece.num_tokens <= 40 or len(piece.batch.spans) == 1 for piece in pieces)
    to_train, held_out = hold_out(pieces)
    assert len(to_train) + len(held_out) == len(pieces)
    assert not {piece.rows.start for piece in to_train} & {piece.rows.start for piece in held_out}
    order = shuffled(to_train, seed=3)
    epoch = [next(order).rows.start for _ in to_train]
    assert sorted(epoch) == [piece.rows.start for piece in to_train]


def test_a_single_piece_is_trained_on_and_held_out() -> None:
    pieces = cut(whole_prompts([[1, 2, 3]]), 40)
    assert hold_out(pieces) == (pieces, pieces)


def test_schedules() -> None:
    assert (cosine(0.0), straight(0.0), ramp(0.0)) == (1.0, 1.0, 0.0)
    assert cosine(1.0) == pytest.approx(0.0)
    assert straight(1.0) == 0.0
    assert ramp(1.0) == 1.0
    assert cosine(0.5) == pytest.approx(0.5)
    stop = EarlyStop(best=1.0, patience=2)
    assert stop.is_better(0.5, done=0.1)
    assert not any(stop.is_better(loss, done=0.2) for loss in (0.9, 0.8, float("nan")))
    assert not stop.stops  # early losses do not count
    assert not any(stop.is_better(loss, done=0.6) for loss in (0.7, float("nan")))
    assert stop.stops
