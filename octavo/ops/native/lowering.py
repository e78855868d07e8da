"""Lowering: a recording's calls become instructions on values.

Two steps. Neighbouring calls are joined (`fusion.py`); then each node in turn becomes instructions, which decides the
form of every value: one that all readers want in one form is made in it where it is computed, if who computes it sees
enough of a row for that; one that is read in several forms is made as floats and rounded beside them. Without fusing,
every call becomes its own instruction: the same bits, slower, and the test of the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.ops.base import Linear
from octavo.ops.executor_plan import ExecutorUnavailable
from octavo.ops.native import instructions as make
from octavo.ops.native.fusion import LinearAdd, LinearGated, LinearGroup, Node, ProjectAndAttend, fuse
from octavo.ops.native.gathering import gather_early
from octavo.ops.native.graph import FormOf, Graph
from octavo.ops.native.input_form import FLOATS, LARGEST_LOCAL_GROUP, InputForm, input_form
from octavo.ops.native.instructions import Domain, Instruction, Value
from octavo.ops.native.recorder import (
    AddCall,
    AttendCall,
    EmbedCall,
    ExpertsCall,
    GatedCall,
    GatherCall,
    HeadNormCall,
    LinearCall,
    LogitsCall,
    NormCall,
    OpCall,
    RopeCall,
    Symbol,
)


def lower(calls: Sequence[OpCall], form_of: FormOf = input_form, fused: bool = True) -> list[Instruction]:
    """Instructions that compute what `calls` do, in order.

    `form_of(linear)` is the form in which a linear reads its input. Raises `ExecutorUnavailable` for one that no kernel
    multiplies, and for experts that differ in it.
    """
    if fused:
        calls = gather_early(calls)
    nodes: list[Node] = fuse(calls, form_of) if fused else list(calls)
    return _Lowering(nodes, Graph(calls, form_of), fused).run()


@dataclass(frozen=True, slots=True)
class _Form:
    """A symbol in one form."""

    symbol: Symbol
    form: InputForm


class _Lowering:
    def __init__(self, nodes: Sequence[Node], graph: Graph, fused: bool) -> None:
        self.nodes = nodes
        self.graph = graph
        self.fused = fused
        self.instructions: list[Instruction] = []
        self._values: dict[_Form, Value] = {}
        self._last_reader = {symbol: node for node in nodes for symbol in node.inputs}

    def run(self) -> list[Instruction]:
        for node in self.nodes:
            self._lower(node)
        return self.instructions

    def _lower(self, node: Node) -> None:
        match node:
            case EmbedCall(embedding=embedding):
                self._append(make.embed(embedding, self._new(node.output, FLOATS, Domain.TOKENS)))
            case NormCall(norm=norm):
                x = self._floats(node.x)
                self._append(make.norm(x, norm, self._result(node.output, x.domain)))
            case HeadNormCall(norm=norm):
                self._append(make.head_norm(self._in_place(node, node.x, node.output), norm))
            case RopeCall(rope=rope, head_dim=head_dim):
                x = self._in_place(node, node.x, node.output)
                self._append(make.rope(node.output.name, x, rope, head_dim))
            case LinearCall():
                self._linears((node,))
            case LinearGroup(calls=calls):
                self._linears(calls)
            case LinearAdd():
                self._linear_add(node)
            case LinearGated():
                self._linear_gated(node)
            case ProjectAndAttend():
                self._project_and_attend(node)
            case AttendCall():
                self._attend(node)
            case GatedCall(activation=activation):
                gate, up = (self._floats(symbol) for symbol in node.inputs)
                out = self._result(node.output, gate.domain)
                self._append(make.gated(node.output.name, gate, up, activation, out))
            case AddCall():
                self._add(node)
            case ExpertsCall():
                self._experts(node)
            case GatherCall():
                out = self._new(node.output, FLOATS, Domain.LOGITS)
                self._append(make.gather(node.output.name, self._floats(node.x), out))
            case LogitsCall(head=head, softcap=softcap):
                self._append(make.logits(self._read(node.x, self.graph.form(node)), head, softcap))
            case _:
                raise AssertionError(f"{type(node).__name__} is not lowered")

    def _linears(self, calls: Sequence[LinearCall]) -> None:
        x = self._read(calls[0].x, self.graph.form(calls[0]))
        outs = [self._new(call.output, FLOATS, x.domain) for call in calls]
        self._append(make.linear(x, [call.linear for call in calls], outs))

    def _linear_add(self, node: LinearAdd) -> None:
        """In place where nobody needs the residual any more."""
        call = node.linear
        if self._last_reader[node.residual] is not node:
            self._linears((call,))
            residual, branch = self._floats(node.residual), self._floats(call.output)
            self._append(make.add(node.output.name, residual, branch, self._reuse(branch, node.output)))
            return
        x, residual = self._read(call.x, self.graph.form(call)), self._floats(node.residual)
        self._append(make.linear_add(x, call.linear, self._reuse(residual, node.output)))

    def _linear_gated(self, node: LinearGated) -> None:
        x = self._read(node.gate.x, self.graph.form(node.gate))
        out = self._result(node.gated.output, x.domain, LARGEST_LOCAL_GROUP)
        self._append(make.linear_gated(x, node.gate.linear, node.up.linear, node.gated.activation, out))

    def _project_and_attend(self, node: ProjectAndAttend) -> None:
        x = self._read(node.q.x, self.graph.form(node.q))
        q = Value(node.q.output.features)
        self._append(make.project_qkv(x, node.weights, node.attention, q))
        self._append_attend(node.attend, q)

    def _attend(self, call: AttendCall) -> None:
        q, k, v = (self._floats(symbol) for symbol in call.inputs)
        self._append(make.write_kv(call.output.name, k, v, call.attention))
        self._append_attend(call, q)

    def _append_attend(self, call: AttendCall, q: Value) -> None:
        """A group of int8 must lie within the features that one kv head's queries give: they are computed together."""
        attention = call.attention
        features = attention.num_heads // attention.num_kv_heads * attention.head_dim
        forms = self.graph.forms(call.output)
        whole = all(form.group is None or features % form.group == 0 for form in forms)
        out = self._result(call.output, q.domain, LARGEST_LOCAL_GROUP if whole else 0)
        self._append(make.attend(call.output.name, q, attention, out))

    def _experts(self, call: ExpertsCall) -> None:
        x, experts = self._floats(call.x), call.experts
        linears = [(mlp.gate, mlp.up, mlp.down) for mlp in experts.mlps]
        rounded = self._routed([down for *_, down in linears])
        routed = make.RoutedValues(
            x=self._routed([linear for gate, up, _ in linears for linear in (gate, up)]),
            hidden=rounded
            if rounded.form.is_local(LARGEST_LOCAL_GROUP)
            else Value(rounded.features, FLOATS, Domain.ROUTED),
            rounded_hidden=rounded,
            y=Value(call.output.features, FLOATS, Domain.ROUTED),
        )
        self._append(make.experts(x, experts, routed, self._new(call.output, FLOATS, x.domain)))

    def _routed(self, readers: Sequence[Linear]) -> Value:
        """Routed rows in the one form in which all experts read them."""
        forms = {self.graph.form_of(linear) for linear in readers}
        if len(forms) > 1:
            names = f"{readers[0].name} and its like"
            raise ExecutorUnavailable(
                f"{names}: experts of one layer must read their inputs in one form: the same "
                "groups, the same scale, or none"
            )
        return Value(readers[0].num_inputs, forms.pop(), Domain.ROUTED)

    def _add(self, call: AddCall) -> None:
        """Into a summand that nobody needs any more, if there is one."""
        x, y = (self._floats(symbol) for symbol in call.inputs)
        free = [value for symbol, value in zip(call.inputs, (x, y), strict=True) if self._last_reader[symbol] is call]
        out = self._reuse(free[0], call.output) if free else self._new(call.output, FLOATS, x.domain)
        self._append(make.add(call.output.name, x, y, out))

    # -- values --------------------------------------------------------------------------------------------------

    def _append(self, instruction: Instruction) -> None:
        self.instructions.append(instruction)

    def _new(self, symbol: Symbol, form: InputForm, domain: Domain) -> Value:
        value = Value(symbol.features, form, domain)
        self._values[_Form(symbol, form)] = value
        return value

    def _result(self, symbol: Symbol, domain: Domain, largest_group: int | None = None) -> Value:
        """Where an instruction that can round puts its result: in the form that all readers want, if they want one.

        `largest_group` is of an instruction whose tasks see so many features of a row; None: they see all."""
        forms = self.graph.forms(symbol)
        form = forms.pop() if self.fused and len(forms) == 1 else FLOATS
        if largest_group is not None and not form.is_local(largest_group):
            form = FLOATS
        return self._new(symbol, form, domain)

    def _floats(self, symbol: Symbol) -> Value:
        return self._read(symbol, FLOATS)

    def _read(self, symbol: Symbol, form: InputForm) -> Value:
        """The symbol in the form asked for; rounded now if it is there as floats only."""
        wanted = _Form(symbol, form)
        if wanted not in self._values:
            floats = self._values[_Form(symbol, FLOATS)]
            self._append(make.quantize(symbol.name, floats, self._new(symbol, form, floats.domain)))
        return self._values[wanted]

    def _reuse(self, value: Value, symbol: Symbol) -> Value:
        """`value` holds `symbol` from now on."""
        self._values[_Form(symbol, FLOATS)] = value
        return value

    def _in_place(self, node: OpCall, x: Symbol, output: Symbol) -> Value:
        """The value that a call changes: x's own where nobody reads x afterwards, otherwise a copy."""
        value = self._floats(x)
        if self._last_reader[x] is node:
            return self._reuse(value, output)
        copied = self._new(output, FLOATS, value.domain)
        self._append(make.copy(x.name, value, copied))
        return copied
