"""Fusion: neighbouring calls that one instruction computes, found as patterns over symbols with a single reader.

Each pattern looks at one call, its anchor, and what feeds it. A call that no pattern takes stays as it is, so any legal
forward pass can be run; fusing changes how often values travel through memory, never a bit of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from octavo.ops.base import Attention, Norm, Rope
from octavo.ops.native.graph import FormOf, Graph
from octavo.ops.native.instructions import QkvWeights
from octavo.ops.native.recorder import (
    AddCall,
    AttendCall,
    GatedCall,
    HeadNormCall,
    LinearCall,
    OpCall,
    RopeCall,
    Symbol,
)


@dataclass(frozen=True, slots=True, eq=False)
class LinearGroup:
    """Linears that read one input in one form."""

    calls: tuple[LinearCall, ...]

    @property
    def inputs(self) -> tuple[Symbol, ...]:
        return self.calls[0].inputs

    @property
    def outputs(self) -> tuple[Symbol, ...]:
        return tuple(call.output for call in self.calls)


@dataclass(frozen=True, slots=True, eq=False)
class LinearAdd:
    """A linear whose output is only added to a residual."""

    linear: LinearCall
    residual: Symbol
    output: Symbol

    @property
    def inputs(self) -> tuple[Symbol, ...]:
        return (*self.linear.inputs, self.residual)

    @property
    def outputs(self) -> tuple[Symbol, ...]:
        return (self.output,)


@dataclass(frozen=True, slots=True, eq=False)
class LinearGated:
    """gate and up of one input, and the activation that joins them."""

    gate: LinearCall
    up: LinearCall
    gated: GatedCall

    @property
    def inputs(self) -> tuple[Symbol, ...]:
        return self.gate.inputs

    @property
    def outputs(self) -> tuple[Symbol, ...]:
        return self.gated.outputs


@dataclass(frozen=True, slots=True, eq=False)
class ProjectAndAttend:
    """q, k, v of one input, with head norms and rotation, keys and values stored, and the attention over them."""

    q: LinearCall
    weights: QkvWeights
    attend: AttendCall

    @property
    def inputs(self) -> tuple[Symbol, ...]:
        return self.q.inputs

    @property
    def outputs(self) -> tuple[Symbol, ...]:
        return self.attend.outputs

    @property
    def attention(self) -> Attention:
        return self.attend.attention


Node = OpCall | LinearGroup | LinearAdd | LinearGated | ProjectAndAttend


@dataclass(frozen=True, slots=True)
class Match:
    """`node` computes all of `calls` and stands where the last of them stood, or the first of a group."""

    node: Node
    calls: tuple[OpCall, ...]


Pattern = Callable[[OpCall, Graph], Match | None]


def fuse(calls: Sequence[OpCall], form_of: FormOf) -> list[Node]:
    """The calls, with those that patterns took replaced by their nodes."""
    graph = Graph(calls, form_of)
    taken: set[OpCall] = set()
    node_at: dict[OpCall, Node] = {}
    for pattern in PATTERNS:
        for call in calls:
            match = None if call in taken else pattern(call, graph)
            if match is not None and taken.isdisjoint(match.calls):
                taken.update(match.calls)
                node_at[call] = match.node
    return [node_at.get(call, call) for call in calls if call in node_at or call not in taken]


def project_and_attend(call: OpCall, graph: Graph) -> Match | None:
    """attend(q, k, v), each a linear of one input; q and k with an optional head norm and one optional rotation."""
    if not isinstance(call, AttendCall):
        return None
    chains = [_head_chain(symbol, graph) for symbol in call.inputs]
    if any(chain is None for chain in chains):
        return None
    q, k, v = (chain for chain in chains if chain is not None)
    linears = (q.linear, k.linear, v.linear)
    one_input = len({each.x for each in linears}) == 1 and len({graph.form(each) for each in linears}) == 1
    head_dims_fit = q.head_dims | k.head_dims <= {call.attention.head_dim}
    if not one_input or not head_dims_fit or q.rope is not k.rope or v.norm is not None or v.rope is not None:
        return None
    weights = QkvWeights(q.linear.linear, k.linear.linear, v.linear.linear, q.norm, k.norm, q.rope)
    return Match(ProjectAndAttend(q.linear, weights, call), (call, *q.calls, *k.calls, *v.calls))


@dataclass(frozen=True, slots=True)
class _HeadChain:
    """linear, then perhaps a norm of each head, then perhaps a rotation."""

    linear: LinearCall
    norm_call: HeadNormCall | None
    rope_call: RopeCall | None

    @property
    def norm(self) -> Norm | None:
        return self.norm_call.norm if self.norm_call else None

    @property
    def rope(self) -> Rope | None:
        return self.rope_call.rope if self.rope_call else None

    @property
    def calls(self) -> list[OpCall]:
        return [call for call in (self.linear, self.norm_call, self.rope_call) if call is not None]

    @property
    def head_dims(self) -> set[int]:
        norm_dims = {len(self.norm.weight)} if self.norm else set()
        return norm_dims | ({self.rope_call.head_dim} if self.rope_call else set())


def _head_chain(symbol: Symbol, graph: Graph) -> _HeadChain | None:
    rope = graph.made_for_one(symbol, RopeCall)
    if rope is not None:
        symbol = rope.x
    norm = graph.made_for_one(symbol, HeadNormCall)
    if norm is not None:
        symbol = norm.x
    linear = graph.made_for_one(symbol, LinearCall)
    return None if linear is None else _HeadChain(linear, norm, rope)


def linear_gated(call: OpCall, graph: Graph) -> Match | None:
    """gated(gate(x), up(x))."""
    if not isinstance(call, GatedCall):
        return None
    gate, up = (graph.made_for_one(symbol, LinearCall) for symbol in call.inputs)
    if gate is None or up is None or gate.x is not up.x or graph.form(gate) != graph.form(up):
        return None
    return Match(LinearGated(gate, up, call), (gate, up, call))


def linear_add(call: OpCall, graph: Graph) -> Match | None:
    """x + linear(h), in either order."""
    if not isinstance(call, AddCall):
        return None
    for residual, branch in (call.inputs, call.inputs[::-1]):
        linear = graph.made_for_one(branch, LinearCall)
        if linear is not None and residual is not linear.x:
            return Match(LinearAdd(linear, residual, call.output), (linear, call))
    return None


def linear_group(call: OpCall, graph: Graph) -> Match | None:
    """All linears that read what this one reads, in the same form."""
    if not isinstance(call, LinearCall):
        return None
    same = [each for each in graph.uses(call.x) if isinstance(each, LinearCall)]
    group = tuple(each for each in same if graph.form(each) == graph.form(call))
    return Match(LinearGroup(group), group) if len(group) > 1 and group[0] is call else None


#: The most specific first: a call belongs to the first that takes it.
PATTERNS: tuple[Pattern, ...] = (project_and_attend, linear_gated, linear_add, linear_group)
