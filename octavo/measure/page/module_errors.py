"""Errors of a checkpoint's matrices, by what they do in a block and by block."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_INDEX = re.compile(r"\.(\d+)\.")
#: What stands before a role and is the same for all.
_PREFIX = re.compile(r"^.*?\.\d+\.")


def role_of(module: str) -> str | None:
    """`model.layers.3.self_attn.q_proj` -> `self_attn.q_proj`; experts share a role; None outside of blocks."""
    if not _INDEX.search(module):
        return None
    return _INDEX.sub(".*.", _PREFIX.sub("", module, count=1))


def block_of(module: str) -> int | None:
    match = _INDEX.search(module)
    return None if match is None else int(match[1])


def errors_by_role(modules: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[float | None]]]:
    """Role -> {"rounded to nearest": by block, "as written": by block}, relative errors of outputs. Where a block has
    several matrices of a role (experts), their mean; None where it has none, or where nothing was measured."""
    num_blocks = 1 + max((block_of(module["name"]) or 0 for module in modules), default=0)
    found: dict[str, list[list[tuple[float, float]]]] = {}
    for module in modules:
        role, block = role_of(module["name"]), block_of(module["name"])
        if role is None or block is None:
            continue
        cells = found.setdefault(role, [[] for _ in range(num_blocks)])
        cells[block].append((float(module["rtn_error"]), float(module["error"])))
    return {
        role: {
            "rounded to nearest": [_mean([pair[0] for pair in cell]) for cell in cells],
            "as written": [_mean([pair[1] for pair in cell]) for cell in cells],
        }
        for role, cells in found.items()
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
