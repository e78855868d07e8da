"""The one place that walks a model: block by block, each transformed and rounded on what rounded predecessors give.

embedding -> [block 0: transform, round q k v | o | gate up | down] -> states -> [block 1 ...
                one pass over all calibration tokens; when a block is finished it goes to the journal
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from torch import Tensor

from octavo.models.decoder import DecoderLayer, DecoderModel
from octavo.numerics.activations import InputQuantizer
from octavo.numerics.kv_scales import KvScales
from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.ops.base import Linear, Norm
from octavo.ops.reference.batch import whole_prompts
from octavo.quantize.block_states import BlockStates
from octavo.quantize.block_training import train_block
from octavo.quantize.bulk_ops import BulkOps, dense
from octavo.quantize.calibration import Calibration
from octavo.quantize.distill import Distilled, Teacher, distill, source_head
from octavo.quantize.finite import check_finite
from octavo.quantize.journal import Journal
from octavo.quantize.kv_calibration import calibrate_kv
from octavo.quantize.pieces import block_outputs, cut
from octavo.quantize.recipe import Recipe
from octavo.quantize.result import BlockResult, ModuleReport, QuantizedWeight
from octavo.quantize.rotate import rotate
from octavo.quantize.rounding import round_with_data, round_with_statistics, round_without_data
from octavo.quantize.rtn import rtn
from octavo.quantize.statistics_cache import StatisticsCache
from octavo.quantize.transforms import transform_block, with_notes

#: Called with (finished blocks, all blocks) after each block.
Progress = Callable[[int, int], None]


@dataclass(slots=True)
class QuantizedModel:
    """What the walk gives. `tensors` by checkpoint name: quantized matrices and the dense ones that changed; `inputs`
    by module name: how linears round their inputs; `kv_scales` by layer; each module's provenance; `latents` by module
    name: what distillation starts from, if it needs any."""

    tensors: dict[str, QuantizedTensor | Tensor] = field(default_factory=dict)
    inputs: dict[str, InputQuantizer] = field(default_factory=dict)
    kv_scales: dict[int, KvScales] = field(default_factory=dict)
    reports: list[ModuleReport] = field(default_factory=list)
    num_resumed_blocks: int = 0
    latents: dict[str, Tensor] = field(default_factory=dict)
    distilled: Distilled | None = None

    def add(self, block: BlockResult) -> None:
        self.tensors |= block.dense
        for name, weight in block.weights.items():
            self.tensors[f"{name}.weight"] = weight.packed
            self.reports.append(weight.report)
            if weight.inputs is not None:
                self.inputs[name] = weight.inputs
            if weight.latent is not None:
                self.latents[name] = weight.latent

    def add_distilled(self, distilled: Distilled, model: DecoderModel) -> None:
        """`model` computes with what was learned already; latent weights are of no use any more."""
        self.distilled = distilled
        self.latents.clear()
        self.tensors |= {f"{name}.weight": packed for name, packed in distilled.weights.items()}
        for norm in model.norms():
            self.tensors[f"{norm.name}.weight"] = norm.weight - model.spec.norm_offset


def quantize_model(
    model: DecoderModel,
    recipe: Recipe,
    calibration: Calibration | None,
    journal: Journal,
    progress: Progress = lambda done, total: None,
    statistics: StatisticsCache | None = None,
    distilling: Progress = lambda done, total: None,
) -> QuantizedModel:
    """Quantize the embedding, every block's linears and an untied head; `model` is changed in place, so the source's
    weights leave memory block by block. `calibration` may be None if the recipe needs none, and with `statistics`:
    then every linear is rounded on those, and nothing is run. `distilling` is told of the recipe's `distill_steps`.

    The result depends on the journal's key alone: resumed or not, the bits are the same. Raises `CheckpointError`
    naming tensors that hold NaN or infinity.
    """
    check_finite(model)
    result = QuantizedModel(num_resumed_blocks=journal.num_finished_blocks)
    if "rotate" in recipe.transforms:
        rotate(model, recipe.seed, recipe.rotation_block)
        result.tensors |= _rotated_dense(model, recipe)
    states = _first_states(model, recipe, calibration, journal) if statistics is None else None
    source = source_head(model) if recipe.distill_steps else None
    result.add(BlockResult(_quantize_embeddings(model, recipe)))
    for index, layer in enumerate(model.layers):
        if index < result.num_resumed_blocks:
            block = journal.block(index)
            _put_back(layer, block, model.spec.norm_offset)
        elif statistics is not None:
            block = BlockResult(round_with_statistics(layer, statistics.block(index), recipe))
            journal.record(block, {})
        else:
            block = _quantize_block(layer, states, recipe, model.spec.norm_offset)
            journal.record(block, {} if states is None else states.named())
        result.add(block)
        if block.kv_scales is not None:
            result.kv_scales[index] = block.kv_scales
        progress(index + 1, len(model.layers))
    if source is not None:
        assert calibration is not None, f"{recipe} needs calibration text"
        last = _journaled_states(calibration, journal)
        assert last.reference is not None
        teacher = Teacher(last.reference, *source)
        result.add_distilled(distill(model, teacher, last, recipe, result.latents, journal, distilling), model)
    return result


def _first_states(
    model: DecoderModel, recipe: Recipe, calibration: Calibration | None, journal: Journal
) -> BlockStates | None:
    """What enters the first unfinished block; None if the recipe looks at no text, or no block is left."""
    if not recipe.needs_calibration or journal.num_finished_blocks == len(model.layers):
        return None
    assert calibration is not None, f"{recipe} needs calibration text"
    if journal.num_finished_blocks:
        return _journaled_states(calibration, journal)
    batch = whole_prompts(calibration.segments)
    hidden = BulkOps().embed(model.embedding, batch)
    return BlockStates(hidden, batch, hidden if recipe.needs_source_states else None, calibration.mask)


def _journaled_states(calibration: Calibration, journal: Journal) -> BlockStates:
    """What left the last finished block."""
    return BlockStates(batch=whole_prompts(calibration.segments), mask=calibration.mask, **journal.hidden())


def _quantize_embeddings(model: DecoderModel, recipe: Recipe) -> dict[str, QuantizedWeight]:
    """RTN for the embedding and an untied head; a tied head stays tied: one matrix, one object."""
    weights = {}
    name, scheme = model.embedding.name, recipe.embedding_scheme_of(model.embedding.name)
    rounded = functools.partial(rtn, scale_dtype=recipe.torch_scale_dtype, search=recipe.search)
    if scheme is not None:
        weights[name] = rounded(name, dense(model.embedding.weight), scheme)
        model.embedding = replace(model.embedding, weight=weights[name].packed)
    if model.spec.tied_embedding:
        model.head = replace(model.head, weight=model.embedding.weight)
        return weights
    head, scheme = model.head, recipe.embedding_scheme_of(model.head.name)
    if scheme is not None:
        weights[head.name] = rounded(head.name, dense(head.weight), scheme)
        model.head = replace(head, weight=weights[head.name].packed)
    return weights


def _quantize_block(layer: DecoderLayer, states: BlockStates | None, recipe: Recipe, norm_offset: float) -> BlockResult:
    """One block, changed in place, as `states` pass through it; they become those that leave it."""
    if states is None:
        return BlockResult(round_without_data(layer, recipe))
    before, entering = list(layer.owners()), states.hidden
    notes = transform_block(layer, states, recipe)
    if states.reference is not None and not recipe.trains_blocks:
        states.reference = block_outputs(layer, states.reference, cut(states.batch))
    weights = train_block(layer, states, recipe) if recipe.trains_blocks else round_with_data(layer, states, recipe)
    if recipe.kv_cache is not None:
        scales = calibrate_kv(layer, entering, states.batch, recipe.kv_cache)
        layer.attention = replace(layer.attention, kv_scales=scales)
    dense_changes = dict(_changed(layer, before, norm_offset))
    return BlockResult(with_notes(weights, notes), dense_changes, layer.attention.kv_scales)


def _rotated_dense(model: DecoderModel, recipe: Recipe) -> dict[str, Tensor]:
    """What a rotated model's checkpoint holds beside the matrices that will be quantized, as it stores them."""
    tensors = {f"{model.final_norm.name}.weight": model.final_norm.weight - model.spec.norm_offset}
    for owner in (model.embedding, model.head):
        if recipe.embedding_scheme_of(owner.name) is None:
            tensors[f"{owner.name}.weight"] = dense(owner.weight)
    for layer in model.layers:
        quantized = {f"{linear.name}.weight" for linear in layer.linears() if recipe.scheme_of(linear.name)}
        changed = _changed(layer, [], model.spec.norm_offset)
        tensors |= {name: tensor for name, tensor in changed if name not in quantized}
    return tensors


def _changed(layer: DecoderLayer, before: list[Linear | Norm], norm_offset: float) -> Iterator[tuple[str, Tensor]]:
    """Dense tensors of owners that were not there before, as the checkpoint stores them."""
    for owner in layer.owners():
        if any(owner is old for old in before):
            continue
        if isinstance(owner, Norm):
            yield f"{owner.name}.weight", owner.weight - norm_offset
            continue
        if isinstance(owner.weight, Tensor):
            yield f"{owner.name}.weight", owner.weight
        if owner.bias is not None:
            yield f"{owner.name}.bias", owner.bias


def _put_back(layer: DecoderLayer, block: BlockResult, norm_offset: float) -> None:
    """A finished block's weights and scales into `layer`."""
    if block.kv_scales is not None:
        layer.attention = replace(layer.attention, kv_scales=block.kv_scales)
    for owner in list(layer.owners()):
        weight = block.dense.get(f"{owner.name}.weight")
        if isinstance(owner, Norm):
            if weight is not None:
                layer.replace_norm(replace(owner, weight=weight + norm_offset))
            continue
        changed = Linear(
            owner.name,
            owner.weight if weight is None else weight,
            block.dense.get(f"{owner.name}.bias", owner.bias),
            owner.inputs,
        )
        if owner.name in block.weights:
            quantized = block.weights[owner.name]
            changed = replace(changed, weight=quantized.packed, inputs=quantized.inputs)
        if any(owner is linear for linear in layer.linears()):
            layer.replace_linear(changed)
        else:
            layer.replace_router(changed)
