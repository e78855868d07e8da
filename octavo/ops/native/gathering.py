"""Rows whose logits nobody wants are dropped as soon as no other row needs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from octavo.ops.native.graph import Graph
from octavo.ops.native.input_form import FLOATS
from octavo.ops.native.recorder import (
    AddCall,
    GatedCall,
    GatherCall,
    LinearCall,
    LogitsCall,
    NormCall,
    OpCall,
    Symbol,
)


def gather_early(calls: Sequence[OpCall]) -> list[OpCall]:
    """The same computation with the gather where it saves most: after the last attention.

    Calls that work row by row and lead to nothing but the logits move behind the gather, which then stands in front of
    each symbol that they read from outside.
    """
    graph = Graph(calls, lambda linear: FLOATS)
    moved: set[OpCall] = set()
    for call in reversed(calls):
        by_row = isinstance(call, NormCall | LinearCall | GatedCall | AddCall)
        uses = graph.uses(call.output)
        if by_row and uses and all(isinstance(use, GatherCall) or use in moved for use in uses):
            moved.add(call)
    return _Regathered(moved).rewrite(calls)


class _Regathered:
    """Rewrites calls so that those of `moved` read gathered symbols."""

    def __init__(self, moved: set[OpCall]) -> None:
        self.moved = moved
        self.result: list[OpCall] = []
        self._gathered: dict[Symbol, Symbol] = {}

    def rewrite(self, calls: Sequence[OpCall]) -> list[OpCall]:
        for call in calls:
            if call in self.moved:
                inputs = tuple(self._gather(symbol) for symbol in call.inputs)
                self.result.append(replace(call, inputs=inputs))
                self._gathered[call.output] = call.output
            elif isinstance(call, GatherCall):
                self._gathered[call.output] = self._gather(call.x)
            else:
                inputs = tuple(self._gathered.get(symbol, symbol) for symbol in call.inputs)
                self.result.append(replace(call, inputs=inputs) if isinstance(call, LogitsCall) else call)
        return self.result

    def _gather(self, symbol: Symbol) -> Symbol:
        """The gathered form of a symbol, made when it is first asked for."""
        if symbol not in self._gathered:
            output = Symbol(symbol.features, symbol.name, symbol.recorder)
            self.result.append(GatherCall((symbol,), output))
            self._gathered[symbol] = output
        return self._gathered[symbol]
