"""The form in which a linear reads its inputs: what rounds them, and how they lie in memory.

| weight | `Linear.inputs` | form |
|---|---|---|
| float, FP8 | none | float32 |
| FP8 | E4M3 | float32 on the grid of E4M3, one scale a row (dynamic) or one for all (static) |
| FP8 | E4M3 in groups, MXFP8 | float32 on that grid, a scale for each group of the row |
| integers, FP4 | none | int8, a scale for each group of up to 64: a choice of these kernels (docs/decisions.md) |
| integers | int8 | int8, one scale a row (dynamic) or one for all (static): the scheme's |

Linears that read one value in one form can share an instruction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from torch import Tensor

from octavo.core.errors import InvalidField
from octavo.numerics.activations import ActivationFormat, InputQuantizer
from octavo.numerics.float_scheme import BLOCK, MXFP8, FloatFormat
from octavo.numerics.float_tensor import FloatTensor
from octavo.numerics.packed_tensor import PackedTensor
from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.ops.base import Linear
from octavo.ops.executor_plan import ExecutorUnavailable

#: Inputs between float rescales where the weight's own groups are larger, or a row is one.
LARGEST_ACTIVATION_GROUP = 64
#: A row can be quantized piece by piece in groups of at most so many features (native/instruction_bindings.cpp).
LARGEST_LOCAL_GROUP = 256


class Grid(StrEnum):
    FLOAT32 = "float32"
    E4M3 = "fp8 e4m3"
    MXFP8 = "mxfp8"
    INT8 = "int8"


class ScaleSource(StrEnum):
    """Whose largest magnitude makes the scale; a fixed one was calibrated."""

    GROUP = "group"
    ROW = "row"
    FIXED = "fixed"


@dataclass(frozen=True, slots=True)
class InputForm:
    """`group` features share a scale if the source is `GROUP`, and a sum of codes if the grid is int8; None: all of the
    row. `scale` is the fixed one, else 0."""

    grid: Grid = Grid.FLOAT32
    group: int | None = None
    source: ScaleSource = ScaleSource.GROUP
    scale: float = 0.0

    @property
    def sum_group(self) -> int | None:
        """Inputs whose products with a weight are summed as integers; None: floats."""
        return self.group if self.grid is Grid.INT8 else None

    def is_local(self, largest_group: int) -> bool:
        """Whether who sees `largest_group` features of a row can make them in this form."""
        return self.source is not ScaleSource.ROW and (self.group or 0) <= largest_group


FLOATS = InputForm()


def input_form(linear: Linear) -> InputForm:
    """Raises `ExecutorUnavailable` for a weight or a pair of grids that no kernel here multiplies."""
    if linear.inputs is None:
        group = activation_group(linear.weight)
        return FLOATS if group is None else InputForm(Grid.INT8, group)
    match linear.weight, linear.inputs.scheme.format:
        case PackedTensor(scheme=scheme), ActivationFormat.INT8:
            # Exact sums over as many inputs as share a weight's scale: all of the row, as a rule.
            return _rounded(linear, Grid.INT8, scheme.group_size or linear.num_inputs)
        case FloatTensor(scheme=scheme), ActivationFormat.E4M3 if scheme.format is not FloatFormat.E2M1:
            return _rounded(linear, Grid.E4M3, None)
        case FloatTensor(scheme=scheme), ActivationFormat.E4M3_GROUPS if scheme.format is not FloatFormat.E2M1:
            return InputForm(Grid.E4M3, BLOCK)
        case FloatTensor(scheme=scheme), ActivationFormat.MXFP8 if scheme.format is not FloatFormat.E2M1:
            return InputForm(Grid.MXFP8, MXFP8.group_size)
    raise ExecutorUnavailable(f"{linear.name}: {_no_product(linear.weight, linear.inputs)}")


def activation_group(weight: Tensor | QuantizedTensor) -> int | None:
    """Inputs that share one scale of the int8 activations which `weight` multiplies, where the scheme leaves its inputs
    alone; None: it takes floats. The weight's own group up to 64 inputs, otherwise 64."""
    match weight:
        case PackedTensor(scheme=scheme):
            return min(scheme.group_size or LARGEST_ACTIVATION_GROUP, LARGEST_ACTIVATION_GROUP)
        case FloatTensor(scheme=scheme) if scheme.format is FloatFormat.E2M1:
            return min(scheme.group_size or LARGEST_ACTIVATION_GROUP, LARGEST_ACTIVATION_GROUP)
    return None


def _rounded(linear: Linear, grid: Grid, group: int | None) -> InputForm:
    assert linear.inputs is not None
    if linear.inputs.scale is None:
        return InputForm(grid, group, ScaleSource.ROW)
    scale = float(linear.inputs.scale)
    if not (math.isfinite(scale) and scale >= 2.0**-126):
        raise InvalidField(f"{linear.name}.input_scale", scale, "a calibrated scale is positive; calibrate again")
    return InputForm(grid, group, ScaleSource.FIXED, scale)


def _no_product(weight: Tensor | QuantizedTensor, inputs: InputQuantizer) -> str:
    kind = str(weight.scheme) if isinstance(weight, QuantizedTensor) else str(weight.dtype).removeprefix("torch.")
    if inputs.scheme.format in (ActivationFormat.NVFP4, ActivationFormat.MXFP4):
        return f"no processor here multiplies FP4 by FP4, {inputs.scheme} inputs are emulated by the reference alone"
    return f"no kernel multiplies {kind} weights by {inputs.scheme} inputs"
