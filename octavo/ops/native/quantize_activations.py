"""Symmetric int8 quantization of activations, one scale for each row and group."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo.core.errors import InvalidField
from octavo.ops.native import _kernels
from octavo.ops.native.kernel_units import kernel_units


def quantize_activations(
    x: NDArray[np.float32], group_size: int | None = None, unit: str | None = None
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """x `[rows, columns]` float32 -> codes int8 `[rows, columns]` and scales float32 `[rows, columns / group_size]`.

    scale = absmax / 127, code = round(x * (127 / absmax)), ties to even; x is about code * scale. `group_size` None is
    one group for a whole row. A group whose scale would be subnormal (all zeros, say) has scale 0 and codes 0. A row's
    result depends on no other row, and every `unit` gives the same bits (None: the best that runs here).

    Raises `InvalidField` for another shape or dtype, a group that does not divide the columns, NaN or infinity (with
    the row and the columns), and a unit that cannot run here.
    """
    _check_matrix(x)
    rows, columns = x.shape
    group_size = columns if group_size is None else group_size
    if group_size < 1 or columns % group_size:
        raise InvalidField("group_size", group_size, f"a group must divide the {columns} columns of x")
    if unit is not None:
        _check_unit(unit)
    codes = np.empty((rows, columns), np.int8)
    scales = np.empty((rows, columns // group_size), np.float32)
    _kernels.quantize_rows(x, codes, scales, np.empty(scales.shape, np.int32), group_size, unit=unit or "")
    _check_finite(scales, group_size)
    return codes, scales


def _check_finite(scales: NDArray[np.float32], group_size: int) -> None:
    """The kernel marks a group that is not finite with scale NaN."""
    bad = np.argwhere(np.isnan(scales))
    if len(bad):
        row, group = bad[0]
        start = group * group_size
        where = f"row {row}, columns {start} to {start + group_size - 1}"
        raise InvalidField("x", "NaN or infinity", f"{where} must be finite")


def _check_matrix(x: NDArray[np.float32]) -> None:
    if x.ndim != 2 or x.dtype != np.float32 or not x.flags.c_contiguous:
        given = f"{x.dtype} {list(x.shape)}{'' if x.flags.c_contiguous else ', strided'}"
        raise InvalidField("x", given, "activations are float32 [rows, columns], row after row in memory")
    if x.shape[1] == 0:
        raise InvalidField("x", list(x.shape), "activations have at least one column")


def _check_unit(unit: str) -> None:
    runnable = [known.name for known in kernel_units() if known.is_available]
    if unit not in runnable:
        raise InvalidField("unit", unit, f"kernel units that run here: {', '.join(runnable)}")
