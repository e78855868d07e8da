"""Scales in the dtype a format wants, where that loses nothing."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.core.errors import InvalidField


def exactly_as(module: str, scale: Tensor, dtype: torch.dtype, format_name: str) -> Tensor:
    """`scale` as `dtype`. Raises `InvalidField` naming the module if one of them would be rounded."""
    stored = scale.to(dtype)
    rounded = int((stored.to(torch.float32) != scale.to(torch.float32)).sum())
    if rounded:
        name = str(dtype).removeprefix("torch.")
        expected = (
            f"it stores {name} scales, and {rounded} of {scale.numel()} scales of {module} are no {name} numbers; "
            f"quantize with scale_dtype={name}"
        )
        raise InvalidField("format", format_name, expected)
    return stored
