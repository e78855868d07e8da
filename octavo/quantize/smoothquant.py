"""SmoothQuant (Xiao et al., 2022, section 4): outliers of activations move into weights, where they do less harm.

s_j = max|X_j|^a / max|W_j|^(1 - a) for channel j: inputs are divided by s (in the norm before), weights multiplied.
Only behind norms: nothing else can be divided for free without changing what another linear reads. The exponent a is
given by the recipe, or each pair gets the one whose half layer, weights and inputs rounded, is closest to the original.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from octavo.models.decoder import DecoderLayer, attention_half
from octavo.ops.base import Norm
from octavo.quantize.block_states import BlockStates
from octavo.quantize.bulk_ops import BulkOps, dense
from octavo.quantize.pair_trial import Candidate, PairTrial, capture_inputs, normalised, sample_states
from octavo.quantize.pairs import Pair, apply_scale, norm_pairs
from octavo.quantize.recipe import Recipe

#: Exponents that are tried: OPT likes .5, Llama-like models .8 to .9.
EXPONENTS = tuple(round(0.3 + 0.05 * step, 2) for step in range(14))
_FINALISTS = 2


def smooth(layer: DecoderLayer, states: BlockStates, recipe: Recipe) -> dict[str, str]:
    """Smooth both norms' pairs of `layer`, which is changed in place and computes the same. Returns what was done by
    module name."""
    largest = norm_maxima(layer, states)
    sample = sample_states(states)
    inputs = capture_inputs(layer, sample)
    notes: dict[str, str] = {}
    for pair in norm_pairs(layer):
        if all(recipe.scheme_of(linear.name) is None for linear in pair.linears):
            continue
        maxima = largest[pair.previous.name]
        best: Candidate | None
        if recipe.smoothing is not None:
            best = candidate(pair, maxima, recipe.smoothing)
        else:
            trial = PairTrial(layer, pair, inputs[pair.reader], sample, recipe)
            best = trial.best(candidates(pair, maxima), _FINALISTS, maxima)
        if best is not None and best.scale is not None:
            apply_scale(layer, pair, best.scale)
        note = "smooth: no candidate's error is finite, identity kept" if best is None else f"smooth {best.label}"
        notes |= {linear.name: note for linear in pair.linears}
    return notes


def candidates(pair: Pair, maxima: Tensor) -> Iterator[Candidate]:
    """Identity and every exponent."""
    yield Candidate("identity", None)
    for exponent in EXPONENTS:
        yield candidate(pair, maxima, exponent)


def candidate(pair: Pair, maxima: Tensor, exponent: float) -> Candidate:
    """`maxima` `[channels]`: the largest magnitude of each input. A channel that never fires, or that no linear reads,
    is left as it is."""
    weights = torch.stack([dense(linear.weight).abs().amax(0) for linear in pair.linears]).amax(0)
    used = (maxima > 0) & (weights > 0)
    if not bool(used.any()):
        return Candidate("identity", None)
    scale = normalised(maxima[used].pow(exponent) / weights[used].pow(1 - exponent))
    return Candidate(f"{exponent:g}", torch.ones_like(maxima).masked_scatter(used, scale))


class _NormMaxima(BulkOps):
    """The reference, which keeps the largest magnitudes `[channels]` that each norm gives."""

    def __init__(self, mask: Tensor | None) -> None:
        super().__init__()
        self.largest: dict[str, Tensor] = {}
        self._mask = mask

    def norm(self, x: Tensor, norm: Norm) -> Tensor:
        y = super().norm(x, norm)
        self.largest[norm.name] = (y if self._mask is None else y[self._mask]).abs().amax(0)
        return y


def norm_maxima(layer: DecoderLayer, states: BlockStates) -> dict[str, Tensor]:
    """Over all tokens of `states` that count, by the norm's name."""
    ops = _NormMaxima(states.mask)
    with torch.inference_mode():
        x, h = states.hidden, ops.norm(states.hidden, layer.input_norm)
        ops.norm(x + attention_half(ops, layer, h, states.batch), layer.mlp_norm)
    return ops.largest
