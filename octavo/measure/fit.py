"""What `octavo fit` was asked for and decided: a scheme for every group of modules, its bytes, what it should lose."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from octavo.core.errors import InvalidField
from octavo.core.units import format_bytes
from octavo.measure.perturbation import rank_correlation
from octavo.numerics.scheme import IntegerScheme
from octavo.quantize.recipe import KEPT, Allocation


@dataclass(frozen=True, slots=True)
class Budget:
    """What a fit may spend: bytes of the whole file, its bits per weight, or a KL in nats per token. Exactly one."""

    num_bytes: int | None = None
    bits_per_weight: float | None = None
    max_divergence: float | None = None

    def __post_init__(self) -> None:
        fields = {"bytes": self.num_bytes, "bpw": self.bits_per_weight, "max_kl": self.max_divergence}
        given = {name: value for name, value in fields.items() if value is not None}
        if len(given) != 1:
            what = ", ".join(f"{name} {value}" for name, value in given.items()) or "nothing"
            raise InvalidField("budget", what, "give one of bytes, bpw (bits per weight) and max_kl (nats per token)")
        for name, value in given.items():
            if not (value > 0 and math.isfinite(value)):
                raise InvalidField(name, value, "a number above 0")

    def file_bytes(self, num_weights: int) -> int:
        """Of a model with so many weights. Not for a budget of divergence."""
        if self.num_bytes is not None:
            return self.num_bytes
        assert self.bits_per_weight is not None
        return int(self.bits_per_weight * num_weights / 8)


@dataclass(frozen=True, slots=True)
class ProxyCheck:
    """Changes that were really made, one at a time: (group, role, scheme, estimated KL, measured KL).

    `factor` corrects a role's estimates: the geometric mean of measured / estimated of its groups.
    """

    changes: list[tuple[str, str, str, float, float]]

    @property
    def rank_correlation(self) -> float:
        """Spearman's, of estimates as they were before any correction."""
        return rank_correlation([each[3] for each in self.changes], [each[4] for each in self.changes])

    def factor(self, role: str) -> float:
        ratios = [measured / estimated for _, r, _, estimated, measured in self.changes if r == role and estimated > 0]
        ratios = [ratio for ratio in ratios if ratio > 0]
        return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else 1.0

    def to_dict(self) -> dict[str, Any]:
        names = ("group", "role", "scheme", "estimated", "measured")
        return {
            "rank_correlation": self.rank_correlation,
            "factors": {role: self.factor(role) for role in dict.fromkeys(each[1] for each in self.changes)},
            "changes": [dict(zip(names, change, strict=True)) for change in self.changes],
        }

    def __str__(self) -> str:
        return (
            f"rank correlation (Spearman) of estimated and measured KL over {len(self.changes)} single changes: "
            f"{self.rank_correlation:.3f}"
        )


@dataclass(frozen=True, slots=True)
class FittedGroup:
    """A group of modules with the scheme it gets (None: kept), its bytes without headers, its expected KL."""

    role: str
    block: int | None
    modules: tuple[str, ...]
    scheme: IntegerScheme | None
    num_bytes: int
    error: float

    @property
    def label(self) -> str:
        """`4g64`, `3g32z` with zero points, `8` per channel, `kept`."""
        if self.scheme is None:
            return "kept"
        group = "" if self.scheme.group_size is None else f"g{self.scheme.group_size}"
        return f"{self.scheme.bits}{group}{'' if self.scheme.symmetric else 'z'}"


@dataclass(frozen=True, slots=True)
class Fit:
    """The allocation that a budget bought. `file_bytes` is the size that model.safetensors will have."""

    groups: list[FittedGroup]
    budget_bytes: int
    file_bytes: int
    num_weights: int
    check: ProxyCheck

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.file_bytes / self.num_weights

    @property
    def expected_divergence(self) -> float:
        """Nats per token, the groups' errors added up."""
        return math.fsum(group.error for group in self.groups)

    @property
    def allocation(self) -> Allocation:
        """For a recipe: every module by name."""
        return tuple(
            (name, KEPT, None, True)
            if group.scheme is None
            else (name, group.scheme.bits, group.scheme.group_size, group.scheme.symmetric)
            for group in self.groups
            for name in group.modules
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "budget_bytes": self.budget_bytes,
            "file_bytes": self.file_bytes,
            "bits_per_weight": self.bits_per_weight,
            "expected_divergence": self.expected_divergence,
            "check": self.check.to_dict(),
            "groups": [
                {**asdict(group), "scheme": None if group.scheme is None else str(group.scheme)}
                for group in self.groups
            ],
        }

    @property
    def summary(self) -> str:
        """One line."""
        return (
            f"{self.file_bytes:,} of {self.budget_bytes:,} bytes ({format_bytes(self.file_bytes)}), "
            f"{self.bits_per_weight:.3f} bits per weight, expected KL {self.expected_divergence:.4f} nats"
        )

    def __str__(self) -> str:
        lines = [
            self.summary,
            str(self.check),
            *self._blocks(),
            *(f"{group.role}: {group.label}" for group in self.groups if group.block is None),
            *self._roles(),
        ]
        return "\n".join(lines)

    def _blocks(self) -> Iterable[str]:
        """One line a block: the scheme of each role."""
        roles = list(dict.fromkeys(group.role for group in self.groups if group.block is not None))
        yield "block  " + "".join(f"{role:<10}" for role in roles)
        labels = {(group.block, group.role): group.label for group in self.groups}
        for block in sorted({group.block for group in self.groups if group.block is not None}):
            yield f"{block:>5}  " + "".join(f"{labels.get((block, role), '-'):<10}" for role in roles)

    def _roles(self) -> Iterable[str]:
        """One line a role: bytes, expected KL, how often each scheme was chosen."""
        for role in dict.fromkeys(group.role for group in self.groups):
            members = [group for group in self.groups if group.role == role]
            counts = Counter(group.label for group in members).most_common()
            size = format_bytes(sum(group.num_bytes for group in members))
            chosen = ", ".join(f"{label} x{count}" for label, count in counts)
            yield f"{role}: {size}, expected KL {sum(group.error for group in members):.4f}; {chosen}"
