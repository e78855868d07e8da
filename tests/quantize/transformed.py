"""A small trained model for tests of transforms: whole, with outlier channels injected, quantized, and compared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from octavo.models.decoder import DecoderModel
from octavo.models.load import load_model
from octavo.ops.reference.batch import whole_prompts
from octavo.quantize.block_states import BlockStates
from octavo.quantize.bulk_ops import BulkOps
from octavo.quantize.calibration import Calibration, load_calibration
from octavo.quantize.journal import Journal
from octavo.quantize.pairs import apply_scale, norm_pairs
from octavo.quantize.pipeline import QuantizedModel, quantize_model
from octavo.quantize.recipe import Recipe

DATA = Path(__file__).parents[2].parent / "shared" / "data"
STORIES = DATA / "models" / "stories260k"
TEXT = DATA / "text" / "tinystories-sample.txt"


def stories() -> DecoderModel:
    return load_model(STORIES).model


def with_outliers(model: DecoderModel, factor: float = 1000.0, channels: tuple[int, ...] = (3, 17, 40)) -> DecoderModel:
    """Channels behind every norm become `factor` times as large, and the linears that read them undo it: the same
    function of the same tokens, in absurd numbers."""
    for layer in model.layers:
        for pair in norm_pairs(layer):
            scale = torch.ones(pair.linears[0].num_inputs)
            scale[list(channels)] = 1 / factor
            apply_scale(layer, pair, scale)
    return model


def calibration(num_windows: int = 8, sequence_length: int = 128) -> Calibration:
    return load_calibration(load_model(STORIES).tokenizer, TEXT, num_windows, sequence_length)


def one_token_calibration() -> Calibration:
    whole = calibration(1, 64)
    segment = whole.packed[0][0]
    return replace(whole, packed=[[replace(segment, tokens=segment.tokens[:1], counts=segment.counts[:1])]])


def unseen_tokens(num_tokens: int = 256) -> list[int]:
    """From the end of the text, which the few windows of `calibration` do not reach."""
    tokens = load_model(STORIES).tokenizer.encode(TEXT.read_text()[-8 * num_tokens :])
    return tokens[-num_tokens:]


def first_states(model: DecoderModel, segments: list[list[int]]) -> BlockStates:
    """What enters the first block."""
    batch = whole_prompts(segments)
    return BlockStates(BulkOps().embed(model.embedding, batch), batch)


def quantized(model: DecoderModel, recipe: Recipe, text: Calibration | None, journal: Path) -> QuantizedModel:
    """`model` is changed in place."""
    return quantize_model(model, recipe, text if recipe.needs_calibration else None, Journal(journal, {}))


def logits(model: DecoderModel, tokens: list[int]) -> Tensor:
    with torch.inference_mode():
        return model.forward(BulkOps(), whole_prompts([tokens]))


def divergence(expected: Tensor, found: Tensor) -> float:
    """Mean KL in nats per token."""
    p, q = expected.log_softmax(-1), found.log_softmax(-1)
    return float((p.exp() * (p - q)).sum(-1).mean())
