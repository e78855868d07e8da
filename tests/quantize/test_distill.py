"""Distillation: the loss and its gradient against autograd, what it repairs, and that a killed run resumes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from octavo.core.errors import InvalidField
from octavo.quantize import head_divergence
from octavo.quantize.head_divergence import Head, divergence
from octavo.quantize.recipe import Recipe
from tests.quantize import trained
from tests.quantize.test_qat import OPTIONS, kill_and_resume

STEPS = 12


@pytest.mark.parametrize("softcap", [None, 5.0])
def test_the_divergence_and_its_gradient(softcap: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """In chunks of three rows, against torch's own on all logits at once."""
    monkeypatch.setattr(head_divergence, "_CHUNK_LOGITS", 3 * 50)
    generator = torch.Generator().manual_seed(0)
    student, teacher = (torch.randn(10, 16, generator=generator) for _ in range(2))
    heads = [
        Head(torch.randn(50, 16, generator=generator), torch.randn(50, generator=generator), softcap) for _ in "ab"
    ]
    loss, gradient = divergence(student, heads[0], teacher, heads[1])
    student.requires_grad_()
    logits = [rows @ head.weight.T + head.bias for rows, head in zip((student, teacher), heads, strict=True)]
    if softcap is not None:
        logits = [softcap * torch.tanh(each / softcap) for each in logits]
    log_p, log_q = (torch.log_softmax(each, -1) for each in logits)
    expected = torch.nn.functional.kl_div(log_p, log_q, reduction="batchmean", log_target=True)
    expected.backward()
    assert loss == pytest.approx(float(expected.detach()), rel=1e-5)
    torch.testing.assert_close(gradient, student.grad, rtol=1e-4, atol=1e-6)


@trained.needs_model
def test_scales_and_norms_alone_repair_some_and_everything_repairs_more() -> None:
    start = trained.divergence(method="gptq", bits=2)
    scales = trained.divergence(method="gptq", bits=2, distill_steps=STEPS)
    everything = trained.divergence(method="gptq", bits=2, distill_steps=STEPS, train="all")
    assert everything < scales < start
    assert everything < 0.8 * start
    before, after = (trained.quantized(method="gptq", bits=2, **more)[1] for more in ({}, {"distill_steps": STEPS}))
    assert after.distilled is not None
    assert after.distilled.divergence < after.distilled.divergence_before
    for name, packed in before.tensors.items():  # codes stay, scales move
        assert torch.equal(packed.codes(), after.tensors[name].codes())
        assert packed.scale.dtype == after.tensors[name].scale.dtype
    norms = [name for name in after.tensors if "norm" in name]
    assert len(norms) == 2 * len(trained.source().model.layers) + 1


@trained.needs_model
def test_it_adds_to_training_block_by_block() -> None:
    blocks = trained.divergence(method="qat", bits=2)
    assert trained.divergence(method="qat", bits=2, distill_steps=STEPS, train="all") < blocks


@trained.needs_model
@pytest.mark.parametrize("train", [pytest.param("scales", marks=pytest.mark.slow), "all"])
def test_a_killed_distillation_ends_with_the_same_bytes(tmp_path: Path, train: str) -> None:
    """16 updates, the state is kept at every second one; killed right after the fifth."""
    options = {**OPTIONS, "method": "gptq", "distill_steps": 16, "train": train}
    assert kill_and_resume(tmp_path, options, num_updates=5) == 5


def test_grids_that_cannot_be_trained_are_refused() -> None:
    with pytest.raises(InvalidField, match="distill_steps"):
        Recipe(scheme="nvfp4", method="rtn", distill_steps=10)
    with pytest.raises(InvalidField, match="method"):
        Recipe(scheme="fp8", method="qat")
