"""The recipe: everything that decides what a quantized model's bits are."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from octavo.core.errors import InvalidField
from octavo.numerics.scheme import IntegerScheme

METHODS = ("gptq", "rtn")
SCALE_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
#: `embedding_bits` that keeps the embedding as the source has it.
KEPT = 16


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to quantize. `group` None is one scale per output channel. Routers of experts are kept as the source has
    them: they are small, and their rounding would send tokens elsewhere.

    The embedding (and an untied head) has `embedding_bits` of its own: 8 is symmetric per channel, fewer bits use
    the linears' grouping, 16 keeps it. `damping` is the first share of the Hessian's mean diagonal GPTQ tries.
    Raises `InvalidField`.
    """

    method: str = "gptq"
    bits: int = 4
    group: int | None = 64
    symmetric: bool = True
    act_order: bool = True
    damping: float = 0.01
    search: bool = True
    embedding_bits: int = 8
    scale_dtype: str = "float16"

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise InvalidField("method", self.method, f"methods are {', '.join(METHODS)}")
        if self.scale_dtype not in SCALE_DTYPES:
            raise InvalidField("scale_dtype", self.scale_dtype, f"scales are stored as {', '.join(SCALE_DTYPES)}")
        if not 0 < self.damping <= 1:
            raise InvalidField("damping", self.damping, "a share of the mean diagonal, above 0 up to 1")
        if self.embedding_bits != KEPT:
            _ = self.embedding_scheme
        _ = self.scheme

    @property
    def scheme(self) -> IntegerScheme:
        return IntegerScheme(self.bits, self.group, self.symmetric)

    @property
    def embedding_scheme(self) -> IntegerScheme | None:
        """None keeps the embedding as it is."""
        if self.embedding_bits == KEPT:
            return None
        try:
            return IntegerScheme(self.embedding_bits, None if self.embedding_bits == 8 else self.group, True)
        except InvalidField as error:
            raise InvalidField("embedding_bits", self.embedding_bits, f"{error.expected}, or {KEPT} to keep") from None

    @property
    def torch_scale_dtype(self) -> torch.dtype:
        return SCALE_DTYPES[self.scale_dtype]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.method} {self.scheme}, embedding {self.embedding_scheme or 'kept'}"
