"""Who makes and who uses each symbol of a recording: what patterns ask before they join calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from octavo.ops.base import Linear
from octavo.ops.native.input_form import FLOATS, InputForm
from octavo.ops.native.recorder import LinearCall, LogitsCall, OpCall, Symbol

#: The form in which a linear reads its inputs (`input_form.input_form`, or a test's own).
FormOf = Callable[[Linear], InputForm]
Call = TypeVar("Call", bound=OpCall)


class Graph:
    """A recording's calls, looked at from their symbols."""

    def __init__(self, calls: Sequence[OpCall], form_of: FormOf) -> None:
        self.calls = calls
        self.form_of = form_of
        self._maker = {call.output: call for call in calls}
        self._uses: dict[Symbol, list[OpCall]] = {}
        for call in calls:
            for symbol in call.inputs:
                self._uses.setdefault(symbol, []).append(call)

    def uses(self, symbol: Symbol) -> list[OpCall]:
        """Calls that read it, in order; one that reads it twice is there twice."""
        return self._uses.get(symbol, [])

    def made_for_one(self, symbol: Symbol, kind: type[Call]) -> Call | None:
        """The call of this kind that makes `symbol`, if nothing but one reader sees it."""
        maker = self._maker[symbol]
        return maker if isinstance(maker, kind) and len(self.uses(symbol)) == 1 else None

    def form(self, call: LinearCall | LogitsCall) -> InputForm:
        """The form in which a linear wants its input."""
        return self.form_of(call.linear if isinstance(call, LinearCall) else call.head)

    def forms(self, symbol: Symbol) -> set[InputForm]:
        """All forms in which `symbol` is read."""
        return {self.form_read_by(call) for call in self.uses(symbol)}

    def form_read_by(self, call: OpCall) -> InputForm:
        return self.form(call) if isinstance(call, LinearCall | LogitsCall) else FLOATS
