"""Rounding a block's linears: each one when its input is known, on the outputs of rounded predecessors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from octavo.models.decoder import DecoderLayer, decoder_layer
from octavo.numerics.activations import InputQuantizer
from octavo.numerics.scheme import IntegerScheme, LinearScheme
from octavo.ops.base import Linear
from octavo.quantize.block_states import BlockStates
from octavo.quantize.bulk_ops import dense
from octavo.quantize.fused import shared_global_scales
from octavo.quantize.gptq import Inverse, gptq, invert
from octavo.quantize.observer import ObserverOps
from octavo.quantize.recipe import Recipe
from octavo.quantize.result import QuantizedWeight
from octavo.quantize.rtn import rtn
from octavo.quantize.statistics import InputStatistics
from octavo.quantize.ternary import ternarize


def round_without_data(layer: DecoderLayer, recipe: Recipe) -> dict[str, QuantizedWeight]:
    """RTN for every linear of `layer`, which is changed in place."""
    block = {}
    global_scales = shared_global_scales(layer, recipe)
    for linear in list(layer.linears()):
        scheme = recipe.scheme_of(linear.name)
        if scheme is not None:
            weight = _rtn(linear, scheme, recipe, None, global_scales.get(linear.name))
            block[linear.name] = weight
            layer.replace_linear(replace(linear, weight=weight.packed, inputs=weight.inputs))
    return block


def round_with_data(layer: DecoderLayer, states: BlockStates, recipe: Recipe) -> dict[str, QuantizedWeight]:
    """RTN or GPTQ for every linear of `layer` as `states` pass through it (true-sequential). `layer` is changed in
    place, and `states.hidden` become those that leave it."""
    rounder = Rounder(recipe, shared_global_scales(layer, recipe))
    with torch.inference_mode():
        states.hidden = decoder_layer(ObserverOps(rounder, states.mask), layer, states.hidden, states.batch)
    for linear in list(layer.linears()):
        if linear.name in rounder.block:
            weight = rounder.block[linear.name]
            layer.replace_linear(replace(linear, weight=weight.packed, inputs=weight.inputs))
    return rounder.block


def round_with_statistics(
    layer: DecoderLayer, statistics: Mapping[str, InputStatistics], recipe: Recipe
) -> dict[str, QuantizedWeight]:
    """RTN or GPTQ for every linear of `layer` on cached statistics (not sequential: they are what the source's own
    linears read); nothing is run. `layer` is changed in place."""
    rounder = Rounder(recipe, shared_global_scales(layer, recipe))
    for linear in list(layer.linears()):
        layer.replace_linear(rounder(linear, statistics[linear.name]))
    return rounder.block


class Rounder:
    """`OnLinear`: one inverted Hessian serves all linears that share an input.

    `block` are the results. For a method that trains they are GPTQ's, with `latent` weights, and `hessians` are kept.
    `global_scales` are what fused members of an NVFP4 scheme share, by name.
    """

    def __init__(self, recipe: Recipe, global_scales: Mapping[str, Tensor] | None = None) -> None:
        self.recipe = recipe
        self.global_scales = global_scales or {}
        self.block: dict[str, QuantizedWeight] = {}
        self.hessians: dict[str, Tensor] = {}
        self._statistics: InputStatistics | None = None
        self._inverse: Inverse | None = None

    def __call__(self, linear: Linear, statistics: InputStatistics) -> Linear:
        scheme = self.recipe.scheme_of(linear.name)
        if scheme is None:
            return linear
        weight = self._quantize(linear, statistics, scheme)
        if self.recipe.keeps_latents and not self.recipe.trains_blocks:
            latent = dense(linear.weight) if weight.latent is None else weight.latent
            weight = replace(weight, latent=latent.to(torch.float16))
        self.block[linear.name] = weight
        if self.recipe.trains_blocks:
            self.hessians[linear.name] = statistics.hessian
        return replace(linear, weight=weight.packed, inputs=weight.inputs)

    def _quantize(self, linear: Linear, statistics: InputStatistics, scheme: LinearScheme) -> QuantizedWeight:
        global_scale = self.global_scales.get(linear.name)
        if self.recipe.method == "rtn":
            return _rtn(linear, scheme, self.recipe, statistics, global_scale)
        if isinstance(scheme.weights, IntegerScheme) and scheme.weights.ternary:
            weight = ternarize(linear.name, dense(linear.weight), statistics, self.recipe.torch_scale_dtype)
            return replace(weight, inputs=input_quantizer(scheme, statistics))
        if statistics is not self._statistics or self._inverse is None:
            self._statistics = statistics
            self._inverse = invert(statistics.hessian, self.recipe.damping, self.recipe.act_order)
        weight = gptq(
            linear.name,
            dense(linear.weight),
            statistics,
            self._inverse,
            scheme.weights,
            scale_dtype=self.recipe.torch_scale_dtype,
            search=self.recipe.search,
            keep_latent=self.recipe.trains_blocks or self.recipe.keeps_latents,
            global_scale=global_scale,
        )
        return replace(weight, inputs=input_quantizer(scheme, statistics))


def _rtn(
    linear: Linear,
    scheme: LinearScheme,
    recipe: Recipe,
    statistics: InputStatistics | None,
    global_scale: Tensor | None = None,
) -> QuantizedWeight:
    weight = rtn(
        linear.name,
        dense(linear.weight),
        scheme.weights,
        scale_dtype=recipe.torch_scale_dtype,
        search=recipe.search,
        statistics=statistics,
        global_scale=global_scale,
    )
    return replace(weight, inputs=input_quantizer(scheme, statistics))


def input_quantizer(scheme: LinearScheme, statistics: InputStatistics | None) -> InputQuantizer | None:
    """How a linear of this scheme rounds its inputs; a calibrated scale maps the largest magnitude that calibration saw
    to the grid's end."""
    if scheme.inputs is None:
        return None
    if not scheme.inputs.needs_scale:
        return InputQuantizer(scheme.inputs)
    assert statistics is not None, f"{scheme.inputs} needs calibration text"
    return InputQuantizer(scheme.inputs, scheme.inputs.calibrated(statistics.largest))
