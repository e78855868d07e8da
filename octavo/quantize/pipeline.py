"""The one place that walks a model: block by block, each linear rounded on the outputs of rounded predecessors.

embedding -> [block 0: q k v | o | gate up | down] -> hidden states -> [block 1 ...
                one pass over all calibration tokens; a linear is quantized when its input is known and
                computes with its new weights at once; then the block goes to the journal
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from octavo.models.decoder import DecoderLayer, DecoderModel, decoder_layer
from octavo.numerics.packed_tensor import PackedTensor
from octavo.ops.base import Linear
from octavo.ops.reference.batch import Batch, whole_prompts
from octavo.quantize.bulk_ops import BulkOps, dense
from octavo.quantize.calibration import Calibration
from octavo.quantize.gptq import Inverse, gptq, invert
from octavo.quantize.journal import Journal
from octavo.quantize.observer import ObserverOps
from octavo.quantize.recipe import Recipe
from octavo.quantize.result import ModuleReport, QuantizedWeight
from octavo.quantize.rtn import rtn
from octavo.quantize.statistics import InputStatistics

#: Called with (finished blocks, all blocks) after each block.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class QuantizedModel:
    """What the walk gives: packed matrices by tensor name (`<module>.weight`) and each one's provenance."""

    tensors: dict[str, PackedTensor]
    reports: list[ModuleReport]
    num_resumed_blocks: int


def quantize_model(
    model: DecoderModel,
    recipe: Recipe,
    calibration: Calibration | None,
    journal: Journal,
    progress: Progress = lambda done, total: None,
) -> QuantizedModel:
    """Quantize the embedding, every block's linears and an untied head; `model` is changed in place, so the source's
    weights leave memory block by block. `calibration` may be None for RTN only.

    The result depends on the journal's key alone: resumed or not, the bits are the same.
    """
    weights = _quantize_embeddings(model, recipe)
    num_resumed = journal.num_finished_blocks
    needs_data = recipe.method == "gptq"
    hidden, batch = None, None
    if needs_data and num_resumed < len(model.layers):
        assert calibration is not None, f"{recipe.method} needs calibration text"
        batch = whole_prompts(calibration.segments)
        hidden = journal.hidden() if num_resumed else BulkOps().embed(model.embedding, batch)
    for index, layer in enumerate(model.layers):
        if index < num_resumed:
            block = journal.block(index)
            _replace(layer, block)
        elif needs_data:
            assert hidden is not None
            block, hidden = _gptq_block(layer, recipe, hidden, batch)
            journal.record(block, hidden)
        else:
            block = _rtn_block(layer, recipe)
            journal.record(block, None)
        weights.update(block)
        progress(index + 1, len(model.layers))
    tensors = {f"{name}.weight": weight.packed for name, weight in weights.items()}
    return QuantizedModel(tensors, [weight.report for weight in weights.values()], num_resumed)


def _quantize_embeddings(model: DecoderModel, recipe: Recipe) -> dict[str, QuantizedWeight]:
    """RTN for the embedding and an untied head; a tied head stays tied: one matrix, one object."""
    scheme = recipe.embedding_scheme
    if scheme is None:
        return {}
    name = model.embedding.name
    embedding = rtn(
        name, dense(model.embedding.weight), scheme, scale_dtype=recipe.torch_scale_dtype, search=recipe.search
    )
    weights = {name: embedding}
    model.embedding = replace(model.embedding, weight=embedding.packed)
    if model.spec.tied_embedding:
        model.head = replace(model.head, weight=embedding.packed)
    else:
        head = model.head
        weights[head.name] = rtn(
            head.name, dense(head.weight), scheme, scale_dtype=recipe.torch_scale_dtype, search=recipe.search
        )
        model.head = replace(head, weight=weights[head.name].packed)
    return weights


def _rtn_block(layer: DecoderLayer, recipe: Recipe) -> dict[str, QuantizedWeight]:
    block = {
        linear.name: rtn(
            linear.name,
            dense(linear.weight),
            recipe.scheme,
            scale_dtype=recipe.torch_scale_dtype,
            search=recipe.search,
        )
        for linear in layer.linears()
    }
    _replace(layer, block)
    return block


def _gptq_block(
    layer: DecoderLayer, recipe: Recipe, hidden: Tensor, batch: Batch | None
) -> tuple[dict[str, QuantizedWeight], Tensor]:
    """Quantize one block on `hidden` `[tokens, hidden]`; also gives the hidden states that leave it."""
    rounder = _Rounder(recipe)
    with torch.inference_mode():
        hidden = decoder_layer(ObserverOps(rounder), layer, hidden, batch)
    _replace(layer, rounder.block)
    return rounder.block, hidden


class _Rounder:
    """`OnLinear` for GPTQ: one inverted Hessian serves all linears that share an input."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.block: dict[str, QuantizedWeight] = {}
        self._statistics: InputStatistics | None = None
        self._inverse: Inverse | None = None

    def __call__(self, linear: Linear, statistics: InputStatistics) -> Linear:
        recipe = self.recipe
        if statistics is not self._statistics or self._inverse is None:
            self._statistics = statistics
            self._inverse = invert(statistics.hessian, recipe.damping, recipe.act_order)
        weight = gptq(
            linear.name,
            dense(linear.weight),
            statistics,
            self._inverse,
            recipe.scheme,
            scale_dtype=recipe.torch_scale_dtype,
            search=recipe.search,
        )
        self.block[linear.name] = weight
        return replace(linear, weight=weight.packed)


def _replace(layer: DecoderLayer, block: dict[str, QuantizedWeight]) -> None:
    for linear in list(layer.linears()):
        layer.replace_linear(replace(linear, weight=block[linear.name].packed))
