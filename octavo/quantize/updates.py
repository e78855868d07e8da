"""Updates: an optimizer over trained weights, with a learning rate for each role that falls by a schedule."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import torch
from torch import Tensor

from octavo.quantize.fake_quantize import TrainedWeight, parameters_by_role
from octavo.quantize.schedule import Schedule

_BETAS = (0.9, 0.99)
#: Second moments are of gradients, which are tiny where a loss is an average over many tokens.
_EPSILON = 1e-12


class Updates:
    """Applies what `backward` left in the parameters of `weights` and in `gains` (norms' factors).

    `rates` are learning rates by role: of `TrainedWeight.parameters`, and "gain". Adam (Kingma and Ba, 2015), or
    with `by_sign` each parameter moves by its rate against its gradient's sign.
    """

    def __init__(
        self,
        weights: Collection[TrainedWeight],
        rates: Mapping[str, float],
        schedule: Schedule,
        *,
        gains: Iterable[Tensor] = (),
        by_sign: bool = False,
    ) -> None:
        self._weights, self._schedule = list(weights), schedule
        roles = parameters_by_role(weights)
        if gains := list(gains):
            roles["gain"] = gains
        groups = [{"params": tensors, "lr": rates[role]} for role, tensors in roles.items()]
        self._rates = [rates[role] for role in roles]
        self._optimizer: torch.optim.Optimizer
        if by_sign:
            self._optimizer = SignDescent(groups)
        else:
            self._optimizer = torch.optim.Adam(groups, betas=_BETAS, eps=_EPSILON, fused=True)

    @property
    def parameters(self) -> list[Tensor]:
        return [tensor for group in self._optimizer.param_groups for tensor in group["params"]]

    def step(self, done: float) -> None:
        """One update; `done` is the share of all steps before it."""
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * self._schedule(done)
        self._optimizer.step()
        self._optimizer.zero_grad()
        for weight in self._weights:
            weight.project()

    def state(self) -> dict[str, Tensor]:
        """Parameters and the optimizer's moments: all it takes to go on to the same bits."""
        state = {f"{index}": tensor.detach() for index, tensor in enumerate(self.parameters)}
        for index, moments in self._optimizer.state_dict()["state"].items():
            state |= {f"{index}.{name}": tensor for name, tensor in moments.items()}
        return state

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        moments: dict[int, dict[str, Tensor]] = {}
        with torch.no_grad():
            for name, tensor in state.items():
                index, _, moment = name.partition(".")
                if moment:
                    moments.setdefault(int(index), {})[moment] = tensor
                else:
                    self.parameters[int(index)].copy_(tensor)
        whole = self._optimizer.state_dict()
        self._optimizer.load_state_dict({**whole, "state": moments})


class SignDescent(torch.optim.Optimizer):
    """Each parameter moves by its learning rate against the sign of its gradient."""

    def __init__(self, groups: Iterable[dict[str, object]]) -> None:
        super().__init__(groups, {"lr": 0.0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.add_(parameter.grad.sign_(), alpha=-group["lr"])
