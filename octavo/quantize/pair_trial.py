"""What a scale would do to a pair: the error of its half layer, rounded, on a sample of the calibration text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from octavo.core.errors import InvalidField
from octavo.models.decoder import DecoderLayer, decoder_layer
from octavo.numerics.activations import InputQuantizer
from octavo.numerics.scheme import LinearScheme
from octavo.ops.base import Experts, Linear
from octavo.ops.reference.batch import Batch, whole_prompts
from octavo.quantize.block_states import BlockStates
from octavo.quantize.bulk_ops import BulkOps, dense
from octavo.quantize.pairs import Pair, inspected_output
from octavo.quantize.recipe import Recipe
from octavo.quantize.rtn import nearest

#: Tokens a scale is judged on: AWQ's own choice is of this order, and they cost no more than a few rows of GPTQ.
SAMPLE_TOKENS = 1024
_SAMPLE_PREFIX = 512
#: An expert with fewer rows of the sample is judged on all of them.
_MIN_EXPERT_ROWS = 32


def sample_states(states: BlockStates, max_tokens: int = SAMPLE_TOKENS) -> BlockStates:
    """About `max_tokens` of the rows: the beginnings of sequences spread evenly over the text, so that attention
    within them is whole."""
    spans = states.batch.spans
    mean_length = max(1, sum(min(span.num_rows, _SAMPLE_PREFIX) for span in spans) // len(spans))
    count = max(1, min(len(spans), max_tokens // mean_length))
    chosen = [spans[index * len(spans) // count] for index in range(count)]
    rows = torch.cat([
        torch.arange(span.first_row, span.first_row + min(span.num_rows, _SAMPLE_PREFIX)) for span in chosen
    ])  # fmt: skip
    tokens = states.batch.tokens[rows].split([min(span.num_rows, _SAMPLE_PREFIX) for span in chosen])
    return BlockStates(states.hidden[rows], whole_prompts([piece.tolist() for piece in tokens]))


class InputCapture(BulkOps):
    """The reference, which keeps what enters each linear, by module name. An expert that few rows were routed to is
    shown all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs: dict[str, Tensor] = {}

    def linear(self, x: Tensor, linear: Linear) -> Tensor:
        self.inputs[linear.name] = x
        return super().linear(x, linear)

    def experts(self, x: Tensor, experts: Experts) -> Tensor:
        y = super().experts(x, experts)
        for mlp in experts.mlps:
            if len(self.inputs.get(mlp.gate.name, ())) < min(_MIN_EXPERT_ROWS, len(x)):
                self.mlp(x, mlp, experts.activation)
        return y


def capture_inputs(layer: DecoderLayer, sample: BlockStates) -> dict[str, Tensor]:
    """What enters each linear of `layer`, float32 `[rows, inputs]`."""
    ops = InputCapture()
    with torch.inference_mode():
        decoder_layer(ops, layer, sample.hidden, sample.batch)
    return ops.inputs


@dataclass(frozen=True, slots=True)
class Candidate:
    """A scale `[channels]` and what to call it; None is identity."""

    label: str
    scale: Tensor | None


class PairTrial:
    """One pair of a layer, tried with one scale after another."""

    def __init__(self, layer: DecoderLayer, pair: Pair, x: Tensor, batch: Batch, recipe: Recipe) -> None:
        """`x` `[rows, channels]` enters the pair's readers; rows are those of `batch` where attention is inspected."""
        self.layer, self.pair, self.x, self.batch, self.recipe = layer, pair, x, batch, recipe
        self._largest, self._mean_square = x.abs().amax(0), x.square().mean(0)
        with torch.inference_mode():
            self._expected = inspected_output(BulkOps(), layer, pair, x, batch)

    def loss(self, scale: Tensor | None, search: bool, largest: Tensor | None = None) -> float:
        """Mean squared error of the inspected output if the readers are rounded after scaling; `search` as in
        `nearest`. `largest` `[channels]` magnitudes that all calibration tokens reach, for static input scales."""
        scale = torch.ones_like(self._largest) if scale is None else scale
        largest = (self._largest if largest is None else largest) / scale
        trial = replace(self.layer)
        with torch.inference_mode():
            for linear in self.pair.linears:
                trial.replace_linear(self._rounded(linear, scale, search, largest))
            if self.pair.router is not None:
                trial.replace_router(replace(self.pair.router, weight=dense(self.pair.router.weight) * scale))
            found = inspected_output(BulkOps(), trial, self.pair, self.x / scale, self.batch)
            return float((found - self._expected).square().mean())

    def best(self, candidates: Iterable[Candidate], finalists: int, largest: Tensor | None = None) -> Candidate | None:
        """The candidate of least loss; None if no loss is finite. All are tried with min-max grids; where the recipe
        searches scales, the best `finalists` and identity are tried again that way."""
        losses = [(self.loss(candidate.scale, False, largest), candidate) for candidate in candidates]
        ranked = sorted((entry for entry in losses if _is_finite(entry[0])), key=lambda entry: entry[0])
        if self.recipe.search and ranked:
            chosen = [entry[1] for entry in ranked[:finalists]]
            chosen += [entry[1] for entry in ranked[finalists:] if entry[1].scale is None]
            ranked = sorted(
                ((self.loss(candidate.scale, True, largest), candidate) for candidate in chosen),
                key=lambda entry: entry[0],
            )
        return ranked[0][1] if ranked else None

    def _rounded(self, linear: Linear, scale: Tensor, search: bool, largest: Tensor) -> Linear:
        scheme = self.recipe.scheme_of(linear.name)
        weight = dense(linear.weight) * scale
        if scheme is None or not bool(torch.isfinite(weight).all()):
            return replace(linear, weight=weight)
        importance = self._mean_square / scale.square() if search else None
        try:
            rounded = nearest(
                weight, scheme.weights, scale_dtype=self.recipe.torch_scale_dtype, search=search, importance=importance
            ).dequantize()
        except InvalidField as error:
            if error.field != "scale_dtype":
                raise
            rounded = torch.full_like(weight, torch.inf)  # these scales overflow: no candidate
        return replace(linear, weight=rounded, inputs=_input_quantizer(scheme, largest))


def _input_quantizer(scheme: LinearScheme, largest: Tensor) -> InputQuantizer | None:
    if scheme.inputs is None:
        return None
    return InputQuantizer(scheme.inputs, scheme.inputs.calibrated(float(largest.max())))


def _is_finite(loss: float) -> bool:
    return loss - loss == 0.0


def normalised(scale: Tensor) -> Tensor:
    """Divided by sqrt(largest * smallest): scales lie around 1, so neither side under- or overflows."""
    return scale / (scale.max() * scale.min()).sqrt()
