"""What other engines will make of packed integer weights, told from shapes: before a file is written, not at load.

Limits of vLLM's kernels as of August 2026 (quantization.md 2a, and users' cases 7 and 8 in 4).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from octavo.numerics.scheme import IntegerScheme, LinearScheme

_MARLIN_INPUTS, _MARLIN_OUTPUTS = 128, 64
_MARLIN_GROUPS = (None, 32, 64, 128)
_DEGREES = (2, 3, 4, 8)


def engine_notes(
    schemes: Mapping[str, LinearScheme],
    shapes: Mapping[str, tuple[int, int]],
    split_by_inputs: Collection[str] = (),
) -> list[str]:
    """Notes for modules with integer weights and dense inputs. `split_by_inputs`: linears whose inputs tensor
    parallelism shards (o_proj, down_proj); the others' outputs are."""
    grids = {
        module: linear.weights
        for module, linear in schemes.items()
        if isinstance(linear.weights, IntegerScheme) and linear.inputs is None and not linear.weights.ternary
    }
    notes = []
    slow = [module for module, scheme in grids.items() if not _fits_marlin(shapes[module], scheme)]
    if slow:
        notes.append(
            f"vLLM's Marlin kernels take inputs that divide by {_MARLIN_INPUTS}, outputs by {_MARLIN_OUTPUTS} and "
            f"groups of 32, 64, 128 or a whole row; {_some(slow, shapes)} do not: vLLM picks a slower kernel or refuses"
        )
    works = [
        degree for degree in _DEGREES if all(_shards(shapes[m], grids[m], degree, split_by_inputs, m) for m in grids)
    ]
    if grids and len(works) < len(_DEGREES):
        degrees = ", ".join(map(str, works)) or "none of 2, 3, 4, 8"
        notes.append(f"tensor parallelism that keeps groups whole: {degrees}")
    return notes


def _fits_marlin(shape: tuple[int, int], scheme: IntegerScheme) -> bool:
    outputs, inputs = shape
    whole = inputs % _MARLIN_INPUTS == 0 and outputs % _MARLIN_OUTPUTS == 0
    return whole and scheme.group_size in _MARLIN_GROUPS


def _shards(
    shape: tuple[int, int], scheme: IntegerScheme, degree: int, split_by_inputs: Collection[str], module: str
) -> bool:
    outputs, inputs = shape
    if module not in split_by_inputs:
        return outputs % degree == 0
    return inputs % (degree * (scheme.group_size or 1)) == 0


def _some(modules: list[str], shapes: Mapping[str, tuple[int, int]]) -> str:
    rest = f" and {len(modules) - 1} more" if len(modules) > 1 else ""
    return f"{modules[0]} {list(shapes[modules[0]])}{rest}"
