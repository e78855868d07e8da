"""What is done to a block before it is rounded. The block computes the same afterwards; its rounding does less harm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from octavo.core.errors import InvalidField
from octavo.models.decoder import DecoderLayer
from octavo.quantize.awq import awq
from octavo.quantize.block_states import BlockStates
from octavo.quantize.kv_calibration import equalize_keys
from octavo.quantize.recipe import Recipe
from octavo.quantize.result import QuantizedWeight
from octavo.quantize.rotate import check_rotation
from octavo.quantize.smoothquant import smooth

if TYPE_CHECKING:
    from octavo.models.spec import ModelSpec

#: What was done to each module, in order, in words.
TransformNotes = dict[str, tuple[str, ...]]


def check_transforms(spec: ModelSpec, recipe: Recipe) -> None:
    """Before any work. Raises `InvalidField` if a transform of `recipe` cannot be, or has no effect on, this model."""
    if "rotate" in recipe.transforms:
        check_rotation(spec, recipe.rotation_block)
    if "smooth" in recipe.transforms and recipe.linear_scheme.inputs is None:
        expected = (
            f"smoothing makes activations easier to round, and {recipe.linear_scheme} rounds none; "
            "use awq, or a scheme with activations (w8a8, w8a8-static, fp8, fp8-static)"
        )
        raise InvalidField("transforms", "smooth", expected)


def transform_block(layer: DecoderLayer, states: BlockStates, recipe: Recipe) -> TransformNotes:
    """Smooth, scale and equalize `layer`, changed in place, as `recipe` asks for, on the `states` that enter it."""
    notes: TransformNotes = {}
    if "smooth" in recipe.transforms:
        _add(notes, smooth(layer, states, recipe))
    if "awq" in recipe.transforms:
        _add(notes, awq(layer, states, recipe))
    if recipe.kv_cache is not None:
        note = equalize_keys(layer, states, recipe.kv_cache)
        _add(notes, {layer.q.name: note, layer.k.name: note})
    return notes


def with_notes(weights: Mapping[str, QuantizedWeight], notes: TransformNotes) -> dict[str, QuantizedWeight]:
    """`weights` whose reports say what was done to them before rounding."""
    return {
        name: replace(weight, report=replace(weight.report, transforms=notes.get(name, ())))
        for name, weight in weights.items()
    }


def _add(notes: TransformNotes, more: Mapping[str, str]) -> None:
    for name, note in more.items():
        notes[name] = (*notes.get(name, ()), note)
