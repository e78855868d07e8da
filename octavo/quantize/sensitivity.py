"""How much a model's predictions mind an error in a linear's output: the Fisher information, one backward pass.

For a small error d in the outputs y of a linear, the divergence of the changed predictions from the model's own is
KL = 1/2 E[(g . d)^2] with g the gradient of -log p(token) by y, the token drawn from the model's own prediction (true
Fisher, Martens 2020, section 5; not the text's token, which would weigh what the model gets wrong). With d = dW x, and
g taken as independent of x and of itself between outputs:

    KL per token = 1/2 sum_o  E[g_o^2]  dW_o H dW_o'        H = E[x x']
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from octavo.models.decoder import DecoderModel, decoder_layer
from octavo.ops.base import Linear
from octavo.ops.reference.batch import Batch, whole_prompts
from octavo.quantize.bulk_ops import dense
from octavo.quantize.journal import write_tensors
from octavo.quantize.training_ops import TrainingOps

#: Rows of logits that exist at once.
_CHUNK_ROWS = 256
_FILE_NAME = "sensitivity.safetensors"

#: E[g_o^2] per token by module name, float32 `[outputs]`.
Sensitivities = dict[str, Tensor]
#: Called with (finished blocks, all blocks).
Progress = Callable[[int, int], None]


def measure_sensitivities(
    model: DecoderModel,
    segments: Sequence[Sequence[int]],
    mask: Tensor | None = None,
    seed: int = 0,
    progress: Progress = lambda done, total: None,
) -> Sensitivities:
    """Of every linear of `model`, over the tokens of `segments`; of those that `mask` bool `[tokens]` excludes the
    prediction does not matter. `seed` draws the predicted tokens.

    Blocks are run forward without gradients, then backward one by one, each computed again: as much memory as one
    block's activations and the hidden states between blocks.
    """
    batch = whole_prompts(segments)
    mask = torch.ones(batch.num_rows, dtype=torch.bool) if mask is None else mask
    entering = _forward(model, batch)
    gradient = _output_gradient(model, entering.pop(), mask, seed)
    squares: dict[str, Tensor] = {}
    for index in reversed(range(len(model.layers))):
        x = entering.pop().requires_grad_()
        ops = _GradientOps(squares)
        decoder_layer(ops, model.layers[index], x, batch).backward(gradient)
        assert x.grad is not None
        gradient = x.grad
        progress(len(model.layers) - index, len(model.layers))
    return {name: square / int(mask.sum()) for name, square in squares.items()}


def load_sensitivities(directory: Path, num_tokens: int) -> Sensitivities | None:
    """What `save_sensitivities` left of so many tokens, or None."""
    file = directory / _FILE_NAME
    if not file.exists():
        return None
    with safe_open(file, framework="pt") as stored:
        if stored.metadata() != {"num_tokens": str(num_tokens)}:
            return None
        return {name: stored.get_tensor(name).clone() for name in stored.keys()}  # noqa: SIM118 (not a mapping)


def save_sensitivities(directory: Path, sensitivities: Sensitivities, num_tokens: int) -> None:
    """Beside the statistics of the same text."""
    write_tensors(directory / _FILE_NAME, sensitivities, {"num_tokens": str(num_tokens)})


class _GradientOps(TrainingOps):
    """Adds up the squared gradient of each linear's outputs over tokens, into `squares` by module name."""

    def __init__(self, squares: dict[str, Tensor]) -> None:
        super().__init__({})
        self._squares = squares

    def linear(self, x: Tensor, linear: Linear) -> Tensor:
        y = super().linear(x, linear)

        def add(gradient: Tensor) -> None:
            square = gradient.square().sum(0)
            self._squares[linear.name] = self._squares.get(linear.name, torch.zeros_like(square)) + square

        if y.requires_grad:
            y.register_hook(add)
        return y


def _forward(model: DecoderModel, batch: Batch) -> list[Tensor]:
    """What enters each block `[tokens, hidden]`, and what leaves the last."""
    ops = TrainingOps({})
    with torch.no_grad():
        states = [ops.embed(model.embedding, batch)]
        for layer in model.layers:
            states.append(decoder_layer(ops, layer, states[-1], batch))
    return states


def _output_gradient(model: DecoderModel, hidden: Tensor, mask: Tensor, seed: int) -> Tensor:
    """Gradient of the summed -log p(token) by the last block's output, tokens drawn from the predictions."""
    ops, generator = TrainingOps({}), torch.Generator().manual_seed(seed)
    head = Linear(model.head.name, dense(model.head.weight), model.head.bias)
    softcap = model.spec.logit_softcap
    pieces = []
    for rows, counted in zip(hidden.split(_CHUNK_ROWS), mask.split(_CHUNK_ROWS), strict=True):
        x = rows.detach().requires_grad_()
        logits = ops.linear(ops.norm(x, model.final_norm), head)
        log_p = torch.log_softmax(logits if softcap is None else softcap * torch.tanh(logits / softcap), -1)
        drawn = torch.multinomial(log_p.detach().exp(), 1, generator=generator)
        (-log_p.gather(1, drawn)[counted].sum()).backward()
        assert x.grad is not None
        pieces.append(x.grad)
    return torch.cat(pieces)
