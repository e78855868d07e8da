"""Distillation: the whole quantized model learns to predict what its source predicts (EfficientQAT's second phase,
Chen et al., 2024, with KL(source || quantized) as the loss instead of the text's own next tokens).

"scales" trains scales, zero points and norms: codes stay. "all" trains the latent weights behind the codes too.

The source is not needed: its hidden states behind the last block are kept by the walk, and logits are computed from
them piece by piece. Only one block's activations and one piece's logits exist at a time (Chen et al., 2016).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from octavo.models.decoder import DecoderLayer, DecoderModel, decoder_layer
from octavo.numerics.packed_tensor import PackedTensor
from octavo.ops.base import Linear, Norm
from octavo.quantize.block_states import BlockStates
from octavo.quantize.bulk_ops import BulkOps, dense
from octavo.quantize.fake_quantize import LatentWeight
from octavo.quantize.head_divergence import Head, divergence
from octavo.quantize.journal import Journal
from octavo.quantize.pieces import Piece, counted, cut, hold_out, shuffled
from octavo.quantize.recipe import Recipe
from octavo.quantize.schedule import EarlyStop, cosine
from octavo.quantize.training_ops import TrainingOps
from octavo.quantize.updates import Updates

#: How far parameters may travel (`Updates`) in a model of `_WIDTH` features.
_TRAVEL = {"units": 1.0, "scale": 0.05, "zero": 0.05, "gain": 0.03}
_WIDTH = 64
#: In a wider one they travel less, by this power of the width: an update moves all weights of a row at once (as Adam's
#: rate in Yang et al., 2022), and there are fewer scales to a row. SmolLM2-135M (576 features) at 2 bits from GPTQ:
#: units of 0.8 diverge within three updates, 0.12 with scales of 0.015 takes a KL of 2.02 to 1.29 in 18.
_NARROWING = {"units": 1.0, "scale": 0.5, "zero": 0.5, "gain": 0.5}
#: Where latent weights start on their way from the code's middle, 0, to where the walk left them, 1. Training by blocks
#: leaves many beside a tie, where any update flips them at random. A model of 260 K at 3 bits, 24 updates: KL .273 to
#: .265 from 1, to .268 from 0, to .228 from 0.5.
_LATENT_SHARE = {"qat": 0.5, "signround": 0.5}
#: How often the held-out loss is measured and the state is written to the journal.
_NUM_EVALUATIONS = 8
_PATIENCE = 3
_STATE = "distillation"

#: Called with (finished steps, all steps).
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Teacher:
    """The source's predictions: `hidden` float32 `[tokens, hidden]` leave its last block."""

    hidden: Tensor
    norm: Norm
    head: Head

    def normed(self, rows: slice) -> Tensor:
        return BulkOps().norm(self.hidden[rows], self.norm)


@dataclass(slots=True)
class Distilled:
    """What training changed, and KL(source || quantized) of held-out text before and after, nats a token."""

    weights: dict[str, PackedTensor]
    gains: dict[str, Tensor]
    divergence_before: float
    divergence: float
    num_steps: int = 0

    def __str__(self) -> str:
        return (
            f"distilled in {self.num_steps} steps: KL to the source on held-out calibration text "
            f"{self.divergence_before:.4f} -> {self.divergence:.4f} nats per token"
        )


def source_head(model: DecoderModel) -> tuple[Norm, Head]:
    """What `Teacher` needs of a model whose embedding and head are still the source's."""
    return model.final_norm, _head(model)


def distill(
    model: DecoderModel,
    teacher: Teacher,
    states: BlockStates,
    recipe: Recipe,
    latents: Mapping[str, Tensor],
    journal: Journal,
    progress: Progress = lambda done, total: None,
) -> Distilled:
    """`recipe.distill_steps` updates of `model`, whose linears are replaced by the best that were seen. `latents` are
    weights to start from by linear, for "all"; `states.batch` and `states.mask` the text. Goes on where a killed run
    was, to the same bits."""
    distillation = Distillation(model, teacher, states, recipe, latents)
    distilled = distillation.run(journal, progress)
    _put_in(model, distilled)
    return distilled


class Distillation:
    """One run. A resumed one continues from the state that `journal` holds."""

    def __init__(
        self,
        model: DecoderModel,
        teacher: Teacher,
        states: BlockStates,
        recipe: Recipe,
        latents: Mapping[str, Tensor],
    ) -> None:
        self.model, self.teacher, self.mask, self.recipe = model, teacher, states.mask, recipe
        self.weights = {linear.name: _trained(linear, recipe, latents) for linear in _packed_linears(model)}
        self.gains = {norm.name: torch.ones_like(norm.weight).requires_grad_() for norm in model.norms()}
        self.head = _head(model)
        self.ops = TrainingOps(self.weights, self.gains)
        self.to_train, self.held_out = hold_out(counted(cut(states.batch), self.mask))
        gains = self.gains.values()
        narrower = _WIDTH / model.spec.hidden_size
        travel = {role: far * narrower ** _NARROWING[role] for role, far in _TRAVEL.items()}
        self.updates = Updates(self.weights.values(), travel, recipe.distill_steps, cosine, gains)

    def run(self, journal: Journal, progress: Progress) -> Distilled:
        num_steps, every = self.recipe.distill_steps, max(1, self.recipe.distill_steps // _NUM_EVALUATIONS)
        best, stop = self._begin_or_resume(journal)
        pieces = itertools.islice(shuffled(self.to_train, self.recipe.seed), best.num_steps, None)
        for step in range(best.num_steps, num_steps):
            progress(step, num_steps)
            self._learn(next(pieces))
            self.updates.step(step)
            if (step + 1) % every == 0 or step + 1 == num_steps:
                if stop.is_better(self.held_out_divergence(), step / num_steps):
                    best = self._now(best.divergence_before, stop.best)
                best.num_steps = step + 1
                if stop.stops:
                    break
                journal.save_state(_STATE, step + 1, *self._state(best, stop))
        progress(num_steps, num_steps)
        return best

    def held_out_divergence(self) -> float:
        """Mean over held-out rows."""
        with torch.no_grad():
            losses = [(self._divergence(piece, self._forward(piece))[0], piece.num_tokens) for piece in self.held_out]
        return sum(loss * count for loss, count in losses) / sum(count for _, count in losses)

    def _learn(self, piece: Piece) -> None:
        """Gradients of one piece."""
        normed = self._forward(piece)
        _, gradient = self._divergence(piece, normed.detach())
        normed.backward(gradient)

    def _forward(self, piece: Piece) -> Tensor:
        """Normed hidden states of the rows that count."""
        with torch.no_grad():
            x = self.ops.embed(self.model.embedding, piece.batch)
        for layer in self.model.layers:
            x = checkpoint(_run, self.ops, layer, x, piece, use_reentrant=False, preserve_rng_state=False)
        normed = self.ops.norm(x, self.model.final_norm)
        return normed if self.mask is None else normed[self.mask[piece.rows]]

    def _divergence(self, piece: Piece, normed: Tensor) -> tuple[float, Tensor]:
        wanted = self.teacher.normed(piece.rows)
        wanted = wanted if self.mask is None else wanted[self.mask[piece.rows]]
        return divergence(normed, self.head, wanted, self.teacher.head)

    def _now(self, divergence_before: float, loss: float) -> Distilled:
        weights = {name: weight.packed() for name, weight in self.weights.items()}
        gains = {name: gain.detach().clone() for name, gain in self.gains.items()}
        return Distilled(weights, gains, divergence_before, loss)

    def _begin_or_resume(self, journal: Journal) -> tuple[Distilled, EarlyStop]:
        stored = journal.state(_STATE)
        if stored is None:
            loss = self.held_out_divergence()
            return self._now(loss, loss), EarlyStop(loss, _PATIENCE)
        tensors, fields = stored
        self.updates.load_state(_below(tensors, "updates"))
        best = self._now(fields["divergence_before"], fields["divergence"])
        best.num_steps = fields["num_steps"]
        best.gains = _below(tensors, "gain")
        for name, weight in best.weights.items():
            best.weights[name] = PackedTensor.from_parts(_below(tensors, name), weight.scheme, weight.shape)
        return best, EarlyStop(fields["divergence"], _PATIENCE, fields["num_worse"])

    def _state(self, best: Distilled, stop: EarlyStop) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = {f"updates/{name}": tensor for name, tensor in self.updates.state().items()}
        tensors |= {f"gain/{name}": tensor for name, tensor in best.gains.items()}
        for name, weight in best.weights.items():
            tensors |= {f"{name}/{part}": tensor for part, tensor in weight.parts().items()}
        return tensors, {
            "num_steps": best.num_steps,
            "divergence_before": best.divergence_before,
            "divergence": best.divergence,
            "num_worse": stop.num_worse,
        }


def _run(ops: TrainingOps, layer: DecoderLayer, x: Tensor, piece: Piece) -> Tensor:
    y: Tensor = decoder_layer(ops, layer, x, piece.batch)
    return y


def _trained(linear: Linear, recipe: Recipe, latents: Mapping[str, Tensor]) -> LatentWeight:
    assert isinstance(linear.weight, PackedTensor)
    latent = None
    if recipe.keeps_latents:
        latent = linear.weight.dequantize()
        if linear.name in latents:
            latent.lerp_(latents[linear.name].to(torch.float32), _LATENT_SHARE.get(recipe.method, 1.0))
    return LatentWeight(linear.weight, latent, linear.inputs)


def _packed_linears(model: DecoderModel) -> Iterator[Linear]:
    for layer in model.layers:
        yield from (linear for linear in layer.linears() if isinstance(linear.weight, PackedTensor))


def _head(model: DecoderModel) -> Head:
    return Head(dense(model.head.weight), model.head.bias, model.spec.logit_softcap)


def _put_in(model: DecoderModel, distilled: Distilled) -> None:
    """`model` computes with what was learned."""
    for layer in model.layers:
        for owner in list(layer.owners()):
            if isinstance(owner, Norm):
                layer.replace_norm(replace(owner, weight=owner.weight * distilled.gains[owner.name]))
            elif owner.name in distilled.weights:
                layer.replace_linear(replace(owner, weight=distilled.weights[owner.name]))
    norm = model.final_norm
    model.final_norm = replace(norm, weight=norm.weight * distilled.gains[norm.name])


def _below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Those whose names begin with `prefix/`, without it."""
    start = f"{prefix}/"
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}
