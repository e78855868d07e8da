"""The instructions of a step program, as plain data: one function for each that the C++ program knows.

An instruction names the program's method and its arguments in that method's order; `Value`, `Matrix`, `Vector`,
`RopeTable` and `Attention` stand for what exists only once the program does. `reads` and `writes` are what lifetimes
are made of; a value that is changed in place is in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from torch import Tensor

from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.ops.base import Activation, Attention, Embedding, Experts, Linear, Norm, Rope
from octavo.ops.native.input_form import FLOATS, InputForm


class Domain(StrEnum):
    """Which rows a value has: all of the step's tokens, those whose logits are wanted, or each token once for each of
    its experts."""

    TOKENS = "tokens"
    LOGITS = "logits"
    ROUTED = "routed"


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """Rows `[rows, features]` between instructions, in one form. Compared by identity."""

    features: int
    form: InputForm = FLOATS
    domain: Domain = Domain.TOKENS


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight in the kernels' layout. `group`: inputs that share a sum, by the form of the activations that it
    multiplies; None where it multiplies none (an embedding) or floats."""

    name: str
    weight: Tensor | QuantizedTensor
    group: int | None = None


@dataclass(frozen=True, slots=True)
class Vector:
    """Float32 numbers that the program copies, or None."""

    values: Tensor | None


@dataclass(frozen=True, slots=True)
class RopeTable:
    """cos and sin by position, or none."""

    rope: Rope | None


@dataclass(frozen=True, slots=True, eq=False)
class Instruction:
    kind: str
    name: str
    arguments: tuple[Any, ...]
    reads: tuple[Value, ...]
    writes: tuple[Value, ...]

    def __str__(self) -> str:
        return f"{self.kind:12} {self.name}"


def embed(embedding: Embedding, out: Value) -> Instruction:
    arguments = (Matrix(embedding.name, embedding.weight), embedding.multiplier, out)
    return Instruction("embed", embedding.name, arguments, (), (out,))


def norm(x: Value, norm: Norm, out: Value) -> Instruction:
    return Instruction("norm", norm.name, (x, Vector(norm.weight), norm.eps, out), (x,), (out,))


def head_norm(x: Value, norm: Norm) -> Instruction:
    """In place."""
    return Instruction("head_norm", norm.name, (x, Vector(norm.weight), norm.eps), (x,), (x,))


def quantize(name: str, x: Value, out: Value) -> Instruction:
    return Instruction("quantize", name, (x, out), (x,), (out,))


def copy(name: str, x: Value, out: Value) -> Instruction:
    return Instruction("copy", name, (x, out), (x,), (out,))


def linear(x: Value, linears: Sequence[Linear], outs: Sequence[Value]) -> Instruction:
    matrices, biases = [matrix_of(each, x) for each in linears], [Vector(each.bias) for each in linears]
    name = joined_name([each.name for each in linears])
    return Instruction("linear", name, (x, matrices, biases, list(outs)), (x,), tuple(outs))


def linear_add(x: Value, linear: Linear, residual: Value) -> Instruction:
    """residual += linear(x), in place."""
    arguments = (x, matrix_of(linear, x), Vector(linear.bias), residual)
    return Instruction("linear_add", linear.name, arguments, (x, residual), (residual,))


def linear_gated(x: Value, gate: Linear, up: Linear, activation: Activation, out: Value) -> Instruction:
    name = joined_name([gate.name, up.name])
    matrices = (matrix_of(gate, x), Vector(gate.bias), matrix_of(up, x), Vector(up.bias))
    return Instruction("linear_gated", name, (x, *matrices, str(activation), out), (x,), (out,))


@dataclass(frozen=True, slots=True)
class QkvWeights:
    """What turns a layer's input into queries, keys and values."""

    q: Linear
    k: Linear
    v: Linear
    q_norm: Norm | None
    k_norm: Norm | None
    rope: Rope | None


def project_qkv(x: Value, weights: QkvWeights, attention: Attention, q_out: Value) -> Instruction:
    """Keys and values go to the layer's blocks."""
    linears, norms = (weights.q, weights.k, weights.v), (weights.q_norm, weights.k_norm)
    arguments = (
        x,
        *(matrix_of(each, x) for each in linears),
        *(Vector(each.bias) for each in linears),
        *(Vector(each.weight if each else None) for each in norms),
        tuple(each.eps if each else 0.0 for each in norms),
        RopeTable(weights.rope),
        attention.layer,
        attention,
        q_out,
    )
    return Instruction("project_qkv", joined_name([each.name for each in linears]), arguments, (x,), (q_out,))


def rope(name: str, x: Value, rope: Rope, head_dim: int) -> Instruction:
    """In place."""
    return Instruction("rope", name, (x, RopeTable(rope), head_dim), (x,), (x,))


def write_kv(name: str, k: Value, v: Value, attention: Attention) -> Instruction:
    return Instruction("write_kv", name, (k, v, attention.layer, attention), (k, v), ())


def attend(name: str, q: Value, attention: Attention, out: Value) -> Instruction:
    return Instruction("attend", name, (q, attention.layer, attention, out), (q,), (out,))


def gated(name: str, gate: Value, up: Value, activation: Activation, out: Value) -> Instruction:
    return Instruction("gated", name, (gate, up, str(activation), out), (gate, up), (out,))


def add(name: str, x: Value, y: Value, out: Value) -> Instruction:
    """`out` may be `x` or `y`."""
    return Instruction("add", name, (x, y, out), (x, y), (out,))


def gather(name: str, x: Value, out: Value) -> Instruction:
    return Instruction("gather", name, (x, out), (x,), (out,))


@dataclass(frozen=True, slots=True)
class RoutedValues:
    """What a mixture of experts computes in between, of each routed row: its input, hidden features and result.
    `rounded_hidden` is `hidden` itself, or a value of its own where rounding takes whole rows."""

    x: Value
    hidden: Value
    rounded_hidden: Value
    y: Value


def experts(x: Value, experts: Experts, routed: RoutedValues, out: Value) -> Instruction:
    mlps = []
    for mlp in experts.mlps:
        pairs = ((mlp.gate, routed.x), (mlp.up, routed.x), (mlp.down, routed.rounded_hidden))
        mlps.append(tuple(part for each, value in pairs for part in (matrix_of(each, value), Vector(each.bias))))
    choice = (experts.experts_per_token, experts.renormalize, str(experts.activation))
    between = (routed.x, routed.hidden, routed.rounded_hidden, routed.y)
    arguments = (x, matrix_of(experts.router, x), mlps, *choice, *between, out)
    return Instruction("experts", experts.name, arguments, (x,), (*between, out))


def logits(x: Value, head: Linear, softcap: float | None) -> Instruction:
    arguments = (x, matrix_of(head, x), Vector(head.bias), softcap or 0.0)
    return Instruction("logits", head.name, arguments, (x,), ())


def matrix_of(linear: Linear, x: Value) -> Matrix:
    return Matrix(linear.name, linear.weight, x.form.sum_group)


def joined_name(names: Sequence[str]) -> str:
    """`a.q_proj`, `a.k_proj` -> `a.q_proj+k_proj`."""
    parent = names[0].rpartition(".")[0]
    if len(names) > 1 and parent and all(name.rpartition(".")[0] == parent for name in names):
        return f"{parent}.{'+'.join(name.rpartition('.')[2] for name in names)}"
    return "+".join(names)
