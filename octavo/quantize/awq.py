"""AWQ (Lin et al., 2023, section 3.2): channels that carry large inputs get larger weights, hence finer steps.

Rounding w * s to a group's grid and dividing the input by s shrinks the error of that channel by s, as long as the
group's largest weight stays what it is. s = (mean |x|)^a; the exponent a is the one whose rounded half layer is closest
to the original on a sample of the text, a = 0 (identity) included.

The paper's clipping of weights is here the scale search of the rounding itself: ranges shrunk in steps (to .55 at 4
bits), squared errors weighed by the inputs' mean square, in place of 20 steps to .5 (`octavo.numerics.integer`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import torch
from torch import Tensor

from octavo.models.decoder import DecoderLayer
from octavo.quantize.block_states import BlockStates
from octavo.quantize.pair_trial import Candidate, PairTrial, capture_inputs, normalised, sample_states
from octavo.quantize.pairs import apply_scale, linear_pairs, norm_pairs
from octavo.quantize.recipe import Recipe

NUM_EXPONENTS = 20
#: How many of them are tried again with the recipe's scale search.
_FINALISTS = 2
_SMALLEST = 1e-4


def awq(layer: DecoderLayer, states: BlockStates, recipe: Recipe) -> dict[str, str]:
    """Scale every pair of `layer`, which is changed in place and computes the same. Returns what was done by module
    name."""
    sample = sample_states(states)
    inputs = capture_inputs(layer, sample)
    notes: dict[str, str] = {}
    for pair in chain(norm_pairs(layer), linear_pairs(layer)):
        if all(recipe.scheme_of(linear.name) is None for linear in pair.linears):
            continue
        trial = PairTrial(layer, pair, inputs[pair.reader], sample, recipe)
        best = trial.best(candidates(trial.counted), _FINALISTS)
        if best is not None and best.scale is not None:
            apply_scale(layer, pair, best.scale)
        note = "awq: no candidate's error is finite, identity kept" if best is None else f"awq {best.label}"
        notes |= {linear.name: note for linear in pair.linears}
    return notes


def candidates(x: Tensor) -> Iterator[Candidate]:
    """For inputs `x` `[rows, channels]`: identity, then the powers of the mean magnitude, normalised. A channel that
    never fires is scaled like the weakest one that does."""
    yield Candidate("identity", None)
    magnitude = x.to(torch.float32).abs().mean(0)
    live = magnitude > 0
    if not bool(live.any()):
        return
    magnitude = torch.where(live, magnitude, magnitude[live].min())
    for step in range(1, NUM_EXPONENTS):
        exponent = step / NUM_EXPONENTS
        yield Candidate(f"{exponent:.2f}", normalised(magnitude.pow(exponent).clamp_min(_SMALLEST)))
