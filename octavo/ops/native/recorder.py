"""Recording: a model's forward pass run once with symbols leaves the list of its op calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo.core.errors import OctavoError
from octavo.ops.base import (
    Activation,
    Attention,
    Embedding,
    Experts,
    Linear,
    Model,
    Norm,
    Ops,
    Rope,
)


@dataclass(frozen=True, slots=True, eq=False)
class Symbol:
    """A value that an op call makes: `features` floats for each of the step's tokens. `name` is the checkpoint module
    it comes from, for people. Compared by identity."""

    features: int
    name: str
    recorder: RecordingOps = field(repr=False)

    def __add__(self, other: Symbol) -> Symbol:
        return self.recorder.add(self, other)


@dataclass(frozen=True, slots=True, eq=False)
class OpCall:
    """One op: what went in, what came out. Its subclasses add what the op was told."""

    inputs: tuple[Symbol, ...]
    output: Symbol

    @property
    def outputs(self) -> tuple[Symbol, ...]:
        return (self.output,)

    @property
    def x(self) -> Symbol:
        """The input of an op that has one."""
        (x,) = self.inputs
        return x


@dataclass(frozen=True, slots=True, eq=False)
class EmbedCall(OpCall):
    embedding: Embedding


@dataclass(frozen=True, slots=True, eq=False)
class NormCall(OpCall):
    norm: Norm


@dataclass(frozen=True, slots=True, eq=False)
class HeadNormCall(OpCall):
    norm: Norm


@dataclass(frozen=True, slots=True, eq=False)
class LinearCall(OpCall):
    linear: Linear


@dataclass(frozen=True, slots=True, eq=False)
class RopeCall(OpCall):
    rope: Rope
    head_dim: int


@dataclass(frozen=True, slots=True, eq=False)
class AttendCall(OpCall):
    """Inputs are q, k, v."""

    attention: Attention


@dataclass(frozen=True, slots=True, eq=False)
class GatedCall(OpCall):
    """Inputs are gate, up."""

    activation: Activation


@dataclass(frozen=True, slots=True, eq=False)
class ExpertsCall(OpCall):
    experts: Experts


@dataclass(frozen=True, slots=True, eq=False)
class AddCall(OpCall):
    """Inputs are the two summands."""


@dataclass(frozen=True, slots=True, eq=False)
class GatherCall(OpCall):
    """The rows whose logits are wanted, and no others from here on."""


@dataclass(frozen=True, slots=True, eq=False)
class LogitsCall(OpCall):
    """The input has been gathered; the output is the program's result."""

    head: Linear
    softcap: float | None


class RecordingError(OctavoError):
    """A forward pass used the op set in a way that no program can replay."""


class RecordingOps(Ops):
    """Appends each op to `calls`; `batch` is passed through unread."""

    def __init__(self) -> None:
        self.calls: list[OpCall] = []

    def embed(self, embedding: Embedding, batch: Any) -> Symbol:
        output = self._symbol(embedding.weight.shape[1], embedding.name)
        return self._append(EmbedCall((), output, embedding))

    def norm(self, x: Symbol, norm: Norm) -> Symbol:
        _expect(x.features == len(norm.weight), norm.name, x.features, len(norm.weight))
        return self._append(NormCall((x,), self._symbol(x.features, norm.name), norm))

    def head_norm(self, x: Symbol, norm: Norm, head_dim: int) -> Symbol:
        _expect(head_dim == len(norm.weight) and x.features % head_dim == 0, norm.name, x.features, head_dim)
        return self._append(HeadNormCall((x,), self._symbol(x.features, norm.name), norm))

    def linear(self, x: Symbol, linear: Linear) -> Symbol:
        _expect(x.features == linear.num_inputs, linear.name, x.features, linear.num_inputs)
        return self._append(LinearCall((x,), self._symbol(linear.num_outputs, linear.name), linear))

    def rope(self, x: Symbol, rope: Rope, head_dim: int, batch: Any) -> Symbol:
        _expect(x.features % head_dim == 0, x.name, x.features, head_dim)
        return self._append(RopeCall((x,), self._symbol(x.features, x.name), rope, head_dim))

    def attend(self, q: Symbol, k: Symbol, v: Symbol, attention: Attention, batch: Any) -> Symbol:
        name = _parent(q.name)
        q_features, kv_features = (
            heads * attention.head_dim for heads in (attention.num_heads, attention.num_kv_heads)
        )
        for symbol, features in ((q, q_features), (k, kv_features), (v, kv_features)):
            _expect(symbol.features == features, symbol.name, symbol.features, features)
        return self._append(AttendCall((q, k, v), self._symbol(q.features, name), attention))

    def gated(self, gate: Symbol, up: Symbol, activation: Activation) -> Symbol:
        _expect(gate.features == up.features, up.name, up.features, gate.features)
        output = self._symbol(gate.features, _parent(gate.name))
        return self._append(GatedCall((gate, up), output, activation))

    def experts(self, x: Symbol, experts: Experts) -> Symbol:
        return self._append(ExpertsCall((x,), self._symbol(x.features, experts.name), experts))

    def add(self, x: Symbol, y: Symbol) -> Symbol:
        _expect(x.features == y.features, y.name, y.features, x.features)
        return self._append(AddCall((x, y), self._symbol(x.features, y.name)))

    def logits(self, x: Symbol, head: Linear, softcap: float | None, batch: Any) -> Symbol:
        _expect(x.features == head.num_inputs, head.name, x.features, head.num_inputs)
        gathered = self._append(GatherCall((x,), self._symbol(x.features, x.name)))
        return self._append(LogitsCall((gathered,), self._symbol(head.num_outputs, head.name), head, softcap))

    def _symbol(self, features: int, name: str) -> Symbol:
        return Symbol(features, name, self)

    def _append(self, call: OpCall) -> Symbol:
        self.calls.append(call)
        return call.output


def record(model: Model) -> list[OpCall]:
    """The op calls of `model`'s forward pass, in order; the last is its `LogitsCall`."""
    ops = RecordingOps()
    result = model.forward(ops, None)
    if not (ops.calls and isinstance(ops.calls[-1], LogitsCall) and result is ops.calls[-1].output):
        raise RecordingError("a forward pass must end with ops.logits and return what that gave")
    if sum(isinstance(call, LogitsCall) for call in ops.calls) > 1:
        raise RecordingError("a forward pass must call ops.logits once")
    return ops.calls


def most_experts_per_token(calls: Sequence[OpCall]) -> int:
    """How many experts a token uses in the layer that uses most; 0 where there are none."""
    return max((call.experts.experts_per_token for call in calls if isinstance(call, ExpertsCall)), default=0)


def _parent(name: str) -> str:
    """The module that holds `name`."""
    return name.rpartition(".")[0] or name


def _expect(holds: bool, name: str, given: int, expected: int) -> None:
    if not holds:
        raise RecordingError(f"{name}: {given} features do not fit {expected}")
