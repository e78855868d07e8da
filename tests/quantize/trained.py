"""A small trained model, quantized in many ways, and how far each is from its source on text nobody trained on."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from octavo.models.load import LoadedModel, load_model
from octavo.ops.reference.batch import Batch, whole_prompts
from octavo.quantize.bulk_ops import BulkOps
from octavo.quantize.calibration import Calibration, load_calibration
from octavo.quantize.journal import Journal
from octavo.quantize.pipeline import QuantizedModel, quantize_model
from octavo.quantize.recipe import Recipe

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
MODEL = SHARED / "models" / "stories260k"
TEXT = SHARED / "text" / "tinystories-sample.txt"
#: The text's end, which is not calibrated on.
NUM_OTHER_CHARACTERS = 8000

needs_model = pytest.mark.skipif(not MODEL.exists(), reason="needs ../shared/data/models/stories260k")

_STEPS = 24


@functools.cache
def source() -> LoadedModel:
    return load_model(MODEL)


@functools.cache
def calibration() -> Calibration:
    """Windows of all but the end of the text: three updates' worth of tokens, one of them held out."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "stories.txt"
        file.write_text(TEXT.read_text(encoding="utf-8")[:-NUM_OTHER_CHARACTERS], encoding="utf-8")
        return load_calibration(source().tokenizer, str(file), 24, 128)


@functools.cache
def quantized(**recipe: Any) -> tuple[LoadedModel, QuantizedModel]:
    """The model after the walk, and what the walk gave."""
    loaded = load_model(MODEL)
    with tempfile.TemporaryDirectory() as directory:
        journal = Journal(Path(directory) / "journal", {})
        steps = {"steps": _STEPS} if recipe.get("method") in ("signround", "qat") else {}
        group = {} if "scheme" in recipe else {"group": None}  # its 172 inputs divide by no group size
        options = {"embedding_bits": 16, **group, **steps, **recipe}
        result = quantize_model(loaded.model, Recipe.of(**options), calibration(), journal)
    return loaded, result


def divergence(**recipe: Any) -> float:
    """KL(source || quantized) on other stories, nats per token."""
    wanted = _log_probabilities(source())
    found = _log_probabilities(quantized(**recipe)[0])
    return float((wanted.exp() * (wanted - found)).sum(-1).mean())


def perplexity(**recipe: Any) -> float:
    """Of other stories."""
    batch = _other_stories()
    losses = -_log_probabilities(quantized(**recipe)[0])[:-1].gather(1, batch.tokens[1:, None]).flatten()
    starts = torch.tensor([span.first_row for span in batch.spans[1:]])
    within = torch.ones(len(losses), dtype=torch.bool)
    within[starts - 1] = False
    return float(losses[within].mean().exp())


def block_errors(**recipe: Any) -> Tensor:
    """Relative squared error of every block's output on other stories: quantized predecessors against the source's."""
    batch, model = _other_stories(), quantized(**recipe)[0].model
    found, wanted = (_hidden_states(each, batch) for each in (model, source().model))
    return torch.stack([(a - b).square().sum() / b.square().sum() for a, b in zip(found, wanted, strict=True)])


def _hidden_states(model: Any, batch: Batch) -> list[Tensor]:
    from octavo.models.decoder import decoder_layer

    with torch.no_grad():
        states = [BulkOps().embed(model.embedding, batch)]
        for layer in model.layers:
            states.append(decoder_layer(BulkOps(), layer, states[-1], batch))
    return states[1:]


@functools.cache
def _other_stories() -> Batch:
    tokens = source().tokenizer.encode(TEXT.read_text(encoding="utf-8")[-NUM_OTHER_CHARACTERS:])
    return whole_prompts([tokens[first : first + 256] for first in range(0, 2048, 256)])


def _log_probabilities(loaded: LoadedModel) -> Tensor:
    with torch.no_grad():
        logits: Tensor = loaded.model.forward(BulkOps(), _other_stories())
    return torch.log_softmax(logits, -1)
