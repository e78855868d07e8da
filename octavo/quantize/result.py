"""What an algorithm hands back for one linear, and what is remembered about how it got there."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

from octavo.numerics.activations import InputQuantizer
from octavo.numerics.kv_scales import KvScales
from octavo.numerics.quantized_tensor import QuantizedTensor


@dataclass(frozen=True, slots=True)
class ModuleReport:
    """Provenance of one quantized matrix.

    `error` and `rtn_error` are relative: tr(D H D') / tr(W H W') with D = quantized - original and H the inputs'
    second moment, so 0.01 means outputs 1 % off in energy. Without inputs (RTN, embeddings) H is the identity.
    `num_lent_tokens` more were routed to other experts and lent to this one (see `ObserverOps`).
    `block_error_before` and `block_error` are those of the whole block's output on text that training did not see.
    `transforms` say, in words and in order, what was done to it before it was rounded.
    `fallback` says, in words, why a module did not get the method that was asked for; None where it did.
    """

    name: str
    method: str
    scheme: str
    shape: tuple[int, int]
    num_tokens: int
    damping: float | None
    num_dead_inputs: int
    error: float
    rtn_error: float
    fallback: str | None = None
    num_lent_tokens: int = 0
    transforms: tuple[str, ...] = ()
    block_error_before: float | None = None
    block_error: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "shape": list(self.shape), "transforms": list(self.transforms)}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> ModuleReport:
        transforms = tuple(fields.get("transforms", ()))
        return cls(**{**fields, "shape": tuple(fields["shape"]), "transforms": transforms})


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """A quantized matrix, its provenance, and how its linear rounds its inputs (None: not). `latent` float32
    `[outputs, inputs]`, where a method that trains asked for it, are weights whose nearest codes these are."""

    packed: QuantizedTensor
    report: ModuleReport
    inputs: InputQuantizer | None = None
    latent: Tensor | None = None


@dataclass(slots=True)
class BlockResult:
    """What a finished block leaves behind: quantized matrices by module name; norms, biases and kept matrices that
    changed, float32 by tensor name, as the checkpoint stores them; scales of its cached keys and values."""

    weights: dict[str, QuantizedWeight]
    dense: dict[str, Tensor] = field(default_factory=dict)
    kv_scales: KvScales | None = None


def relative_error(weight: Tensor, quantized: Tensor, hessian: Tensor | None) -> float:
    """tr(D H D') / tr(W H W'), 0 for a matrix without energy. `hessian` None is the identity."""
    difference = quantized - weight
    if hessian is None:
        energy, error = weight.square().sum(), difference.square().sum()
    else:
        energy = ((weight @ hessian) * weight).sum()
        error = ((difference @ hessian) * difference).sum()
    return float(error / energy) if float(energy) > 0 else 0.0
