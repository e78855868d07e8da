"""Kernel units: the same kernels, built once for each instruction set."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.ops.native import _kernels


@dataclass(frozen=True, slots=True)
class KernelUnit:
    """One build of the kernels. `needs` is the processor feature it needs, "" for none."""

    name: str
    needs: str
    is_available: bool


def kernel_units() -> list[KernelUnit]:
    """Every unit of this build, slowest first."""
    return [KernelUnit(*row) for row in _kernels.kernel_units()]


def chosen_unit() -> KernelUnit:
    """The unit that is used unless a caller names another: the last available one."""
    return next(unit for unit in kernel_units() if unit.name == _kernels.best_unit())


def cpu_features() -> list[str]:
    """Processor features that the operating system lets a program use, e.g. `["avx", "fma", "f16c", "avx2"]`."""
    return list(_kernels.cpu_features())
