"""What every group of modules may become, in bytes of the file and in expected divergence; a budget picks from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.core.errors import InvalidField
from octavo.core.units import format_bytes
from octavo.measure.fit import Fit, FittedGroup, ProxyCheck
from octavo.numerics.scheme import IntegerScheme
from octavo.quantize.allocate import Choice, allocate, bytes_within
from octavo.quantize.file_size import StoredTensor, header_bytes, safetensors_bytes
from octavo.quantize.module_groups import ModuleGroup

if TYPE_CHECKING:
    pass

#: What a file may hold beside the tensors: lengths and padding of its headers.
_HEADER_SLACK_BYTES = 64
_SHARD_BYTES = 3 * 10**9


@dataclass(frozen=True, slots=True)
class Option:
    """What a group may become: `scheme` None keeps it. `parts` are its tensors in the file, `error` the expected KL
    per token in nats."""

    scheme: IntegerScheme | None
    parts: tuple[StoredTensor, ...]
    error: float


@dataclass(frozen=True, slots=True)
class FitTable:
    """`options[i]` are those of `groups[i]`. `fixed` is in the file whatever is chosen."""

    groups: list[ModuleGroup]
    options: list[list[Option]]
    fixed: list[StoredTensor]
    num_weights: int
    check: ProxyCheck

    @property
    def smallest_bytes(self) -> int:
        """Of the file with every group's smallest option."""
        return self._file_bytes(self._smallest())

    @property
    def largest_bytes(self) -> int:
        """The largest budget that leaves anything to quantize."""
        return self._file_bytes([max(options, key=_data_bytes) for options in self.options]) - 1

    def fit(self, budget_bytes: int) -> Fit:
        """The file of least expected divergence that has at most `budget_bytes`. Raises `InvalidField` where there is
        none, naming the nearest that is."""
        if budget_bytes < self.smallest_bytes:
            least, bits = self.smallest_bytes, 8 * self.smallest_bytes / self.num_weights
            expected = f"the smallest this model can be is {least:,} bytes, {bits:.3f} bits per weight"
            raise InvalidField("budget", f"{budget_bytes:,} bytes", expected)
        chosen = self._choose(budget_bytes, 0) or self._smallest()
        if all(option.scheme is None for option in chosen):
            expected = f"the model as it is takes {format_bytes(self._file_bytes(chosen))}; nothing to quantize"
            raise InvalidField("budget", f"{budget_bytes:,} bytes", expected)
        return Fit(
            [
                FittedGroup(group.role, group.block, group.modules, option.scheme, _data_bytes(option), option.error)
                for group, option in zip(self.groups, chosen, strict=True)
            ],
            budget_bytes,
            self._file_bytes(chosen),
            self.num_weights,
            self.check,
        )

    def bytes_within(self, max_divergence: float) -> int:
        """The smallest budget whose fit is expected to lose at most so much; the largest if none is that good."""
        largest = self.largest_bytes
        choices = [[_choice(option, largest) for option in options] for options in self.options]
        found = bytes_within(choices, max_divergence)
        if found is None:
            return largest
        return min(max(found + self._fixed_bytes(largest), self.smallest_bytes), largest)

    def _fixed_bytes(self, file_bytes: int) -> int:
        """At most what a file of so many bytes holds whatever is chosen: its fixed tensors, the ends of its headers."""
        slack = _HEADER_SLACK_BYTES * (1 + file_bytes // _SHARD_BYTES) + len('{"__metadata__":{"format":"pt"}}')
        return sum(part.num_bytes for part in self.fixed) + header_bytes(self.fixed, file_bytes) + slack

    def _choose(self, budget_bytes: int, spare_bytes: int) -> list[Option] | None:
        """The knapsack's answer. Headers are taken at their longest, and what that leaves over (`spare_bytes`) is
        given out in a second round, if the file then still fits."""
        fixed = self._fixed_bytes(budget_bytes)
        choices = [[_choice(option, budget_bytes) for option in options] for options in self.options]
        found = allocate(choices, budget_bytes - fixed + spare_bytes)
        if found is None:
            return None
        chosen = [options[index] for options, index in zip(self.options, found.chosen, strict=True)]
        file_bytes = self._file_bytes(chosen)
        if file_bytes > budget_bytes:
            return None
        if spare_bytes:
            return chosen
        return self._choose(budget_bytes, found.num_bytes + fixed - file_bytes) or chosen

    def _smallest(self) -> list[Option]:
        return [min(options, key=_data_bytes) for options in self.options]

    def _file_bytes(self, chosen: Sequence[Option]) -> int:
        return safetensors_bytes([*self.fixed, *(part for option in chosen for part in option.parts)])


def _data_bytes(option: Option) -> int:
    return sum(part.num_bytes for part in option.parts)


def _choice(option: Option, file_bytes: int) -> Choice:
    return Choice(_data_bytes(option) + header_bytes(option.parts, file_bytes), option.error)
