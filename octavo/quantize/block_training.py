"""Training a block's quantized weights until its output is what the source's block computes.

signround  rounding offsets and clip factors (`sign_rounding`): a code differs from its start by one at most
qat        latent weights, scales and zero points (Block-AP of EfficientQAT, Chen et al., 2024)

Both start from GPTQ's codes and the weights GPTQ rounded, see inputs from quantized predecessors, aim at the source's
output on the source's own inputs, so that a block also repairs what those before it lost, and keep what was best on
text that was held out. So neither is worse there than GPTQ.

`updates` says why both learn by signs of gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from octavo.models.decoder import DecoderLayer, decoder_layer
from octavo.numerics.packed_tensor import PackedTensor
from octavo.ops.base import Linear
from octavo.quantize.block_states import BlockStates
from octavo.quantize.bulk_ops import dense
from octavo.quantize.fake_quantize import LatentWeight, TrainedWeight
from octavo.quantize.observer import ObserverOps
from octavo.quantize.pieces import Piece, block_outputs, counted, cut, hold_out, shuffled
from octavo.quantize.recipe import Recipe
from octavo.quantize.result import QuantizedWeight, relative_error
from octavo.quantize.rounding import Rounder
from octavo.quantize.schedule import EarlyStop, cosine, ramp, straight
from octavo.quantize.sign_rounding import RoundingOffsets
from octavo.quantize.training_ops import TrainingOps
from octavo.quantize.updates import Updates

#: How far parameters may travel (`Updates`), and along which schedule.
_TRAVEL = {"signround": {"offset": 1.0, "clip": 1.0}, "qat": {"units": 1.0, "scale": 0.1, "zero": 0.1}}
_SCHEDULES = {"signround": straight, "qat": cosine}
#: Of a row of zeros.
_LEAST_ENERGY = 1e-12
_NUM_EVALUATIONS = 8
_PATIENCE = 3


def train_block(layer: DecoderLayer, states: BlockStates, recipe: Recipe) -> dict[str, QuantizedWeight]:
    """Quantize and train the linears of `layer`, which is changed in place; both of `states` become those that leave
    it: `hidden` of the quantized block, `reference` of the source's."""
    assert states.reference is not None
    pieces = cut(states.batch)
    rounder = _round(layer, states, recipe)
    targets = block_outputs(layer, states.reference, pieces)
    trained = {name: _trained(weight, recipe) for name, weight in rounder.block.items()}
    training = BlockTraining(layer, trained, states.hidden, targets, states.mask)
    training.run(recipe, pieces)
    block = {}
    for linear in list(layer.linears()):
        if linear.name in trained:
            weight = _finished(rounder, linear, trained[linear.name], training)
            block[linear.name] = weight
            layer.replace_linear(replace(linear, weight=weight.packed, inputs=weight.inputs))
    states.hidden, states.reference = block_outputs(layer, states.hidden, pieces), targets
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


def _finished(rounder: Rounder, linear: Linear, trained: TrainedWeight, training: BlockTraining) -> QuantizedWeight:
    started, packed = rounder.block[linear.name], trained.packed()
    report = replace(
        started.report,
        method=rounder.recipe.method,
        error=relative_error(dense(linear.weight), packed.dequantize(), rounder.hessians[linear.name]),
        block_error_before=training.error_before,
        block_error=training.error,
    )
    latent = trained.latent().to(torch.float16) if rounder.recipe.keeps_latents else None
    return QuantizedWeight(packed, report, started.inputs, latent)


@dataclass(slots=True)
class BlockTraining:
    """One block's training, on the rows `mask` bool `[tokens]` counts (None: all). `error_before` and `error` are
    what `_loss` gives for held-out rows."""

    layer: DecoderLayer
    trained: Mapping[str, TrainedWeight]
    hidden: Tensor
    targets: Tensor
    mask: Tensor | None
    error_before: float = 0.0
    error: float = 0.0
    _ops: TrainingOps = field(init=False)

    def __post_init__(self) -> None:
        self._ops = TrainingOps(self.trained)

    def run(self, recipe: Recipe, pieces: list[Piece]) -> None:
        """`recipe.steps` updates, fewer if the held-out error stops falling; ends with the best state seen."""
        to_train, held_out = hold_out(counted(pieces, self.mask))
        trained, method = self.trained.values(), recipe.method
        updates = Updates(trained, _TRAVEL[method], recipe.steps, _SCHEDULES[method])
        ramps = any(weight.scheme.ternary for weight in trained)
        self.error_before = self._held_out_error(held_out)
        best, stop = self._snapshot(), EarlyStop(self.error_before, _PATIENCE)
        every = max(1, recipe.steps // _NUM_EVALUATIONS)
        order = shuffled(to_train, recipe.seed + self.layer.index)
        for step in range(recipe.steps):
            done = step / recipe.steps
            share = self._round(ramp(done) if ramps else 1.0)
            self._loss(next(order)).backward()
            updates.step(step)
            if share == 1.0 and ((step + 1) % every == 0 or step + 1 == recipe.steps):
                if stop.is_better(self._held_out_error(held_out), done):
                    best = self._snapshot()
                if stop.stops:
                    break
        self.error = stop.best
        self._restore(best)

    def _round(self, share: float) -> float:
        """How much of each weight is quantized from here on."""
        for weight in self.trained.values():
            if isinstance(weight, LatentWeight):
                weight.rounded_share = share
        return share

    def _loss(self, piece: Piece) -> Tensor:
        """Mean over the rows that count of each row's squared error as a share of its own energy: norms see no more.
        Some tokens' states are a hundred times larger than others', and would else be all that counts."""
        y = decoder_layer(self._ops, self.layer, self.hidden[piece.rows], piece.batch)
        target = self.targets[piece.rows]
        shares = (y - target).square().sum(-1) / target.square().sum(-1).clamp_min(_LEAST_ENERGY)
        return shares.mean() if self.mask is None else shares[self.mask[piece.rows]].mean()

    @torch.no_grad()
    def _held_out_error(self, held_out: list[Piece]) -> float:
        return float(torch.stack([self._loss(piece) for piece in held_out]).mean())

    def _snapshot(self) -> list[Tensor]:
        return [tensor.detach().clone() for tensor in self._parameters()]

    @torch.no_grad()
    def _restore(self, snapshot: list[Tensor]) -> None:
        for tensor, kept in zip(self._parameters(), snapshot, strict=True):
            tensor.copy_(kept)

    def _parameters(self) -> Iterator[Tensor]:
        for weight in self.trained.values():
            yield from weight.parameters().values()
