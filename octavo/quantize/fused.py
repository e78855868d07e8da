"""Linears that engines join to one (q/k/v, gate/up): what they must share."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from octavo.models.decoder import DecoderLayer
from octavo.numerics.float_grid import nvfp4_global_scale
from octavo.numerics.float_scheme import FloatScheme
from octavo.ops.base import Linear
from octavo.quantize.bulk_ops import dense
from octavo.quantize.recipe import Recipe


def fused_members(layer: DecoderLayer) -> Iterator[tuple[Linear, ...]]:
    """The linears of `layer` that read one value, and that an engine computes as one matrix."""
    yield layer.q, layer.k, layer.v
    for mlp in layer.mlps:
        yield mlp.gate, mlp.up


def shared_global_scales(layer: DecoderLayer, recipe: Recipe) -> dict[str, Tensor]:
    """The global scale of each NVFP4 linear that has fused members, by name: the smallest of theirs, so that the
    largest weight of all still has a block scale."""
    shared: dict[str, Tensor] = {}
    for members in fused_members(layer):
        scales = {}
        for linear in members:
            scheme = recipe.scheme_of(linear.name)
            if scheme is not None and isinstance(scheme.weights, FloatScheme) and scheme.weights.has_global_scale:
                scales[linear.name] = nvfp4_global_scale(dense(linear.weight).abs().max())
        if scales:
            shared |= dict.fromkeys(scales, torch.stack([*scales.values()]).amin(0))
    return shared
