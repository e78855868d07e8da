"""Numbers that are none: looked for before the work, so that the tensor that holds them is named."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from octavo.core.errors import CheckpointError
from octavo.models.decoder import DecoderModel
from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.ops.base import Linear


def check_finite(model: DecoderModel) -> None:
    """Raises `CheckpointError` naming every tensor of `model` with NaN or infinity among its values or scales."""
    wrong = [name for name, tensor in _floats(model) if not bool(torch.isfinite(tensor).all())]
    if wrong:
        named = f"{', '.join(wrong[:4])}{f' and {len(wrong) - 4} more' if len(wrong) > 4 else ''}"
        raise CheckpointError(f"{named}: NaN or infinity among the weights; the source is damaged or was not trained")


def _floats(model: DecoderModel) -> Iterator[tuple[str, Tensor]]:
    owners = [model.embedding, *(owner for layer in model.layers for owner in layer.owners()), model.final_norm]
    for owner in [*owners, *([] if model.spec.tied_embedding else [model.head])]:
        yield from ((f"{owner.name}.{part}", tensor) for part, tensor in _parts(owner.weight))
        if isinstance(owner, Linear) and owner.bias is not None:
            yield f"{owner.name}.bias", owner.bias


def _parts(weight: Tensor | QuantizedTensor) -> Iterator[tuple[str, Tensor]]:
    if isinstance(weight, Tensor):
        yield "weight", weight
        return
    for name, tensor in weight.parts().items():
        if tensor.dtype in (torch.float32, torch.float16, torch.bfloat16):
            yield f"weight ({name})", tensor
