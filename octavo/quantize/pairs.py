"""The architecture table: where a scale may move from an operation's output into the linears that read it.

    previous op       linears           equal because
    input norm        q, k, v           the norm's weight is divided, the linears' columns are multiplied
    v                 o                 only if every value head is read by one query head (never under GQA)
    MLP norm          gate, up          experts: all of theirs, and the router, whose choice must not change
    up                down              the gate's activation is not touched; within each expert
Norms after a half layer (Gemma 3) and head norms stand behind the linears, so every pair stays valid with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from torch import Tensor

from octavo.models.decoder import DecoderLayer, attention_half, mlp_half
from octavo.ops.base import Experts, Linear, Norm
from octavo.ops.reference.batch import Batch
from octavo.quantize.bulk_ops import BulkOps, dense


class Inspected(StrEnum):
    """Where a pair's error is looked at: what a half layer adds to the residual stream, or the reading linear alone."""

    ATTENTION = "attention"
    MLP = "mlp"
    LINEAR = "linear"


@dataclass(frozen=True, slots=True)
class Pair:
    """`previous` may be divided by any positive scale by channel, if its readers are multiplied by it."""

    previous: Norm | Linear
    linears: tuple[Linear, ...]
    inspected: Inspected
    router: Linear | None = None

    @property
    def reader(self) -> str:
        """Name of a module that sees all rows of what `previous` gives."""
        return (self.router or self.linears[0]).name


def norm_pairs(layer: DecoderLayer) -> Iterator[Pair]:
    """Those behind a norm. Each one is read from the layer when it is asked for: the layer may have changed."""
    yield Pair(layer.input_norm, (layer.q, layer.k, layer.v), Inspected.ATTENTION)
    router = layer.mlp.router if isinstance(layer.mlp, Experts) else None
    readers = tuple(linear for mlp in layer.mlps for linear in (mlp.gate, mlp.up))
    yield Pair(layer.mlp_norm, readers, Inspected.MLP, router)


def linear_pairs(layer: DecoderLayer) -> Iterator[Pair]:
    """Those behind a linear, read when asked for."""
    if layer.v.num_outputs == layer.o.num_inputs:
        yield Pair(layer.v, (layer.o,), Inspected.LINEAR)
    for expert in range(len(layer.mlps)):
        mlp = layer.mlps[expert]
        yield Pair(mlp.up, (mlp.down,), Inspected.LINEAR)


def apply_scale(layer: DecoderLayer, pair: Pair, scale: Tensor) -> None:
    """Divide `pair.previous` and multiply its readers by `scale` `[channels]`, float32 and positive: `layer`, changed
    in place, computes the same."""
    previous = pair.previous
    if isinstance(previous, Norm):
        layer.replace_norm(replace(previous, weight=previous.weight / scale))
    else:
        bias = None if previous.bias is None else previous.bias / scale
        layer.replace_linear(replace(previous, weight=dense(previous.weight) / scale[:, None], bias=bias))
    for linear in pair.linears:
        layer.replace_linear(replace(linear, weight=dense(linear.weight) * scale))
    if pair.router is not None:
        layer.replace_router(replace(pair.router, weight=dense(pair.router.weight) * scale))


def inspected_output(ops: BulkOps, layer: DecoderLayer, pair: Pair, x: Tensor, batch: Batch) -> Tensor:
    """What `pair`'s error is measured on, for its readers' input `x` `[rows, channels]`: `[rows, hidden]`."""
    match pair.inspected:
        case Inspected.ATTENTION:
            return attention_half(ops, layer, x, batch)
        case Inspected.MLP:
            return mlp_half(ops, layer, x)
        case _:
            reader = next(linear for linear in layer.linears() if linear.name == pair.linears[0].name)
            return ops.linear(x, reader)
