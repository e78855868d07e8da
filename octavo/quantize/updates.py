"""Updates by signs of gradients (signSGD; SignRound, Cheng et al., 2023), with a rate for each role of a parameter.

A parameter moves by its rate against the sign of its gradient, whatever the gradient's size, and rates fall to zero.
With tens or hundreds of updates this is better than Adam, whose averages carry a spike of one gradient through ten
more updates, and nothing has to be kept beside the parameters. Measured at 2 bits: 30 updates of a block of a model of
135 M, error .0281 with Adam, .0254 by signs; 16 updates of a whole model of 260 K, KL 1.54 and 1.33.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import torch
from torch import Tensor

from octavo.quantize.fake_quantize import TrainedWeight
from octavo.quantize.schedule import Schedule

#: The role of a norm's factor; weights name their own (`TrainedWeight.parameters`).
GAIN = "gain"


class Updates:
    """Applies what `backward` left in the parameters of `weights` and in `gains` (norms' factors).

    `travel` is the first rate times `num_steps`, by role: in codes, or as a share of a scale or a norm. With a schedule
    that falls from 1 to 0 nothing travels farther than about half of it, whatever the number of updates.
    """

    def __init__(
        self,
        weights: Collection[TrainedWeight],
        travel: Mapping[str, float],
        num_steps: int,
        schedule: Schedule,
        gains: Iterable[Tensor] = (),
    ) -> None:
        self._weights, self._num_steps, self._schedule = list(weights), max(1, num_steps), schedule
        named = [pair for weight in self._weights for pair in weight.parameters().items()]
        named += [(GAIN, gain) for gain in gains]
        self.parameters = [tensor for _, tensor in named]
        self._rates = [travel[role] / self._num_steps for role, _ in named]

    @torch.no_grad()
    def step(self, step: int) -> None:
        """Update number `step`, from 0; gradients are gone afterwards."""
        share = self._schedule(step / self._num_steps)
        for parameter, rate in zip(self.parameters, self._rates, strict=True):
            if parameter.grad is not None:
                parameter.add_(parameter.grad.sign_(), alpha=-rate * share)
                parameter.grad = None
        for weight in self._weights:
            weight.project()

    def state(self) -> dict[str, Tensor]:
        """All it takes to go on to the same bits."""
        return {f"{index}": tensor.detach() for index, tensor in enumerate(self.parameters)}

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        for index, tensor in enumerate(self.parameters):
            tensor.copy_(state[f"{index}"])
