"""Kernel units: the same kernels, built once for each instruction set."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.ops.native import _kernels


@dataclass(frozen=True, slots=True)
class KernelUnit:
    """One build of the kernels.

    `needs` are the processor features it needs, separated by spaces. `reason` says why it is not available: a feature
    is missing, or it failed its self test (a few small problems that must have the portable unit's bits, solved when
    the units are first asked for). "" if it is available.
    """

    name: str
    needs: str
    is_available: bool
    reason: str


def kernel_units() -> list[KernelUnit]:
    """Every unit of this build, slowest first."""
    return [KernelUnit(*row) for row in _kernels.kernel_units()]


def chosen_unit() -> KernelUnit:
    """The unit that is used unless a caller names another: the last available one."""
    return next(unit for unit in kernel_units() if unit.name == _kernels.best_unit())


def cpu_features() -> list[str]:
    """Processor features that the operating system lets a program use, e.g. `["avx", "fma", "f16c", "avx2"]`."""
    return list(_kernels.cpu_features())
