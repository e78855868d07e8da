"""Training a block's quantized weights until its output is what the source's block computes.

qat        Block-AP of EfficientQAT (Chen et al., 2024): latent weights, scales and zero points, by Adam
signround  rounding offsets and clip factors, by signs of gradients (`sign_rounding`)

Both start from GPTQ's codes and the weights GPTQ rounded, see inputs from quantized predecessors, aim at the source's
output on the source's own inputs, so that a block also repairs what those before it lost, and keep what was best on
text that was held out. So neither is worse there than GPTQ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from octavo.models.decoder import DecoderLayer, decoder_layer
from octavo.numerics.packed_tensor import PackedTensor
from octavo.quantize.block_states import BlockStates
from octavo.quantize.bulk_ops import BulkOps, dense
from octavo.quantize.fake_quantize import LatentWeight, TrainedWeight, parameters_by_role
from octavo.quantize.observer import ObserverOps
from octavo.quantize.pieces import Piece, cut, hold_out, shuffled
from octavo.quantize.recipe import Recipe
from octavo.quantize.result import QuantizedWeight, relative_error
from octavo.quantize.rounding import Rounder
from octavo.quantize.schedule import EarlyStop, Schedule, cosine, straight
from octavo.quantize.sign_rounding import RoundingOffsets, SignDescent
from octavo.quantize.training_ops import TrainingOps

#: Tokens one update sees, unless a sequence alone is longer.
STEP_TOKENS = 1024
#: Learning rates by role. Units are codes and factors, so they hold for every matrix.
_RATES = {"units": 0.02, "scale": 0.002, "zero": 0.002}
_NUM_EVALUATIONS = 8
_PATIENCE = 4


def train_block(layer: DecoderLayer, states: BlockStates, recipe: Recipe) -> dict[str, QuantizedWeight]:
    """Quantize and train the linears of `layer`, which is changed in place; both of `states` become those that leave
    it: `hidden` of the quantized block, `reference` of the source's."""
    assert states.reference is not None
    pieces = cut(states.batch, STEP_TOKENS)
    rounder = _round(layer, states, recipe)
    targets = _outputs(layer, states.reference, pieces)
    trained = {name: _trained(weight, recipe) for name, weight in rounder.block.items()}
    training = BlockTraining(layer, trained, states.hidden, targets, pieces, seed=recipe.seed + layer.index)
    training.run(recipe)
    block = {}
    for linear in list(layer.linears()):
        if linear.name in trained:
            weight = _finished(rounder, linear.name, dense(linear.weight), trained[linear.name].packed(), training)
            block[linear.name] = weight
            layer.replace_linear(replace(linear, weight=weight.packed, inputs=weight.inputs))
    states.hidden, states.reference = _outputs(layer, states.hidden, pieces), targets
    return block


def _round(layer: DecoderLayer, states: BlockStates, recipe: Recipe) -> Rounder:
    """Where training starts; neither `layer` nor `states` changes."""
    rounder = Rounder(recipe)
    with torch.inference_mode():
        decoder_layer(ObserverOps(rounder, states.mask), layer, states.hidden, states.batch)
    return rounder


def _trained(weight: QuantizedWeight, recipe: Recipe) -> TrainedWeight:
    assert isinstance(weight.packed, PackedTensor)
    latent = weight.packed.dequantize() if weight.latent is None else weight.latent  # GPTQ may have fallen back
    kind = RoundingOffsets if recipe.method == "signround" else LatentWeight
    return kind(weight.packed, latent, weight.inputs)


def _outputs(layer: DecoderLayer, x: Tensor, pieces: list[Piece]) -> Tensor:
    """What `layer` makes of all rows of `x`."""
    with torch.no_grad():
        return torch.cat([decoder_layer(BulkOps(), layer, x[piece.rows], piece.batch) for piece in pieces])


def _finished(
    rounder: Rounder, name: str, original: Tensor, packed: PackedTensor, training: BlockTraining
) -> QuantizedWeight:
    started = rounder.block[name]
    report = replace(
        started.report,
        method=rounder.recipe.method,
        error=relative_error(original, packed.dequantize(), rounder.hessians[name]),
        block_error_before=training.error_before,
        block_error=training.error,
    )
    return QuantizedWeight(packed, report, started.inputs)


@dataclass(slots=True)
class BlockTraining:
    """One block's training. `error_before` and `error` are squared errors on the held-out rows as shares of the
    targets' energy."""

    layer: DecoderLayer
    trained: Mapping[str, TrainedWeight]
    hidden: Tensor
    targets: Tensor
    pieces: list[Piece]
    seed: int
    error_before: float = 0.0
    error: float = 0.0
    _ops: TrainingOps = field(init=False)

    def __post_init__(self) -> None:
        self._ops = TrainingOps(self.trained)

    def run(self, recipe: Recipe) -> None:
        """`recipe.steps` updates, fewer if the held-out error stops falling; ends with the best state seen."""
        optimizer, schedule = self._optimizer(recipe)
        rates = [group["lr"] for group in optimizer.param_groups]
        to_train, held_out = hold_out(self.pieces)
        self.error_before = self._held_out_error(held_out)
        best, stop = self._snapshot(), EarlyStop(self.error_before, _PATIENCE)
        every = max(1, recipe.steps // _NUM_EVALUATIONS)
        for step, piece in zip(range(recipe.steps), shuffled(to_train, self.seed), strict=False):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * schedule(step / recipe.steps)
            optimizer.zero_grad()
            self._loss(piece).backward()
            optimizer.step()
            for weight in self.trained.values():
                weight.project()
            if (step + 1) % every == 0 or step + 1 == recipe.steps:
                if stop.is_better(self._held_out_error(held_out)):
                    best = self._snapshot()
                if stop.stops:
                    break
        self.error = stop.best
        self._restore(best)

    def _optimizer(self, recipe: Recipe) -> tuple[torch.optim.Optimizer, Schedule]:
        roles = parameters_by_role(self.trained.values())
        if recipe.method == "signround":
            rate = 1.0 / max(1, recipe.steps)
            return SignDescent([{"params": tensors, "lr": rate} for tensors in roles.values()]), straight
        groups = [{"params": tensors, "lr": _RATES[role]} for role, tensors in roles.items()]
        return torch.optim.Adam(groups, betas=(0.9, 0.99), fused=True), cosine

    def _loss(self, piece: Piece) -> Tensor:
        y = decoder_layer(self._ops, self.layer, self.hidden[piece.rows], piece.batch)
        target = self.targets[piece.rows]
        return LOSS(y, target)

    @torch.no_grad()
    def _held_out_error(self, held_out: list[Piece]) -> float:
        return float(torch.stack([self._loss(piece) for piece in held_out]).mean())

    def _snapshot(self) -> list[Tensor]:
        return [tensor.detach().clone() for weight in self.trained.values() for tensor in weight.parameters().values()]

    @torch.no_grad()
    def _restore(self, snapshot: list[Tensor]) -> None:
        tensors = [tensor for weight in self.trained.values() for tensor in weight.parameters().values()]
        for tensor, kept in zip(tensors, snapshot, strict=True):
            tensor.copy_(kept)


def LOSS(y: Tensor, target: Tensor) -> Tensor:
    return (y - target).square().mean() / target.square().mean()
