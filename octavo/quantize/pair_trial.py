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
from octavo.ops.reference.batch import whole_prompts
from octavo.quantize.block_states import BlockStates
from octavo.quantize.bulk_ops import BulkOps, dense
from octavo.quantize.pairs import Inspected, Pair, inspected_output
from octavo.quantize.recipe import Recipe
from octavo.quantize.rtn import nearest

#: Tokens a scale is judged on. On a block of SmolLM2-135M, 512 choose scales that leave 3 % more error on unseen text
#: than 1,024 do, and take two thirds of the time.
SAMPLE_TOKENS = 1024
_SAMPLE_PREFIX = 256
#: An expert with fewer rows of the sample is judged on all of them.
_MIN_EXPERT_ROWS = 32


def sample_states(states: BlockStates, max_tokens: int = SAMPLE_TOKENS) -> BlockStates:
    """About `max_tokens` of the rows: the beginnings of sequences spread evenly over the text, so that attention
    within them is whole. Beginnings that hold only context are left out."""
    pieces = [slice(span.first_row, span.first_row + min(span.num_rows, _SAMPLE_PREFIX)) for span in states.batch.spans]
    if states.mask is not None:
        pieces = [piece for piece in pieces if bool(states.mask[piece].any())] or pieces
    mean_length = max(1, sum(piece.stop - piece.start for piece in pieces) // len(pieces))
    count = max(1, min(len(pieces), max_tokens // mean_length))
    chosen = [pieces[index * len(pieces) // count] for index in range(count)]
    mask = None if states.mask is None else torch.cat([states.mask[piece] for piece in chosen])
    return BlockStates(
        hidden=torch.cat([states.hidden[piece] for piece in chosen]),
        batch=whole_prompts([states.batch.tokens[piece].tolist() for piece in chosen]),
        mask=mask if mask is not None and bool(mask.any()) else None,
    )


class InputCapture(BulkOps):
    """The reference, which keeps what enters each linear, by module name. An expert that few rows were routed to is
    shown all of them; rows of context are not shown to experts."""

    def __init__(self, mask: Tensor | None) -> None:
        super().__init__()
        self.inputs: dict[str, Tensor] = {}
        self._mask = mask

    def linear(self, x: Tensor, linear: Linear) -> Tensor:
        self.inputs[linear.name] = x
        return super().linear(x, linear)

    def experts(self, x: Tensor, experts: Experts) -> Tensor:
        counted = torch.ones(len(x), dtype=torch.bool) if self._mask is None else self._mask
        routed = {expert: rows[counted[rows]] for expert, rows, _ in self.route(x, experts).groups()}
        y = super().experts(x, experts)
        for expert, mlp in enumerate(experts.mlps):
            rows = routed.get(expert, torch.empty(0, dtype=torch.int64))
            enough = len(rows) >= min(_MIN_EXPERT_ROWS, int(counted.sum()))
            self.mlp(x[rows] if enough else x[counted], mlp, experts.activation)
        return y


def capture_inputs(layer: DecoderLayer, sample: BlockStates) -> dict[str, Tensor]:
    """What enters each linear of `layer`, float32 `[rows, inputs]`: all rows of the sample behind norms, without those
    of context where the linear is inspected alone."""
    ops = InputCapture(sample.mask)
    with torch.inference_mode():
        decoder_layer(ops, layer, sample.hidden, sample.batch)
    if sample.mask is not None:
        alone = (layer.o,) if isinstance(layer.mlp, Experts) else (layer.o, layer.mlp.down)
        ops.inputs |= {linear.name: ops.inputs[linear.name][sample.mask] for linear in alone}
    return ops.inputs


@dataclass(frozen=True, slots=True)
class Candidate:
    """A scale `[channels]` and what to call it; None is identity."""

    label: str
    scale: Tensor | None


class PairTrial:
    """One pair of a layer, tried with one scale after another."""

    def __init__(self, layer: DecoderLayer, pair: Pair, x: Tensor, sample: BlockStates, recipe: Recipe) -> None:
        """`x` is what `capture_inputs` gives for the pair's reader."""
        self.layer, self.pair, self.x, self.recipe = layer, pair, x, recipe
        self._batch = sample.batch
        self._mask = None if pair.inspected is Inspected.LINEAR else sample.mask
        self._largest, self._mean_square = self.counted.abs().amax(0), self.counted.square().mean(0)
        self._expected = self._output(layer, x)

    @property
    def counted(self) -> Tensor:
        """Rows of `x` that are no context."""
        return self.x if self._mask is None else self.x[self._mask]

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
            return float((self._output(trial, self.x / scale) - self._expected).square().mean())

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

    def _output(self, layer: DecoderLayer, x: Tensor) -> Tensor:
        with torch.inference_mode():
            y = inspected_output(BulkOps(), layer, self.pair, x, self._batch)
        return y if self._mask is None else y[self._mask]

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
