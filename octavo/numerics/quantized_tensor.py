"""What every quantized matrix can do, whatever its grid."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from octavo.numerics.scheme import Scheme


class QuantizedTensor(ABC):
    """A matrix `[rows, columns]` held as codes and scales. Rows are outputs, columns inputs."""

    __slots__ = ()

    scheme: Scheme
    shape: tuple[int, int]

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Bytes of codes, scales and zero points in memory."""

    @abstractmethod
    def parts(self) -> dict[str, Tensor]:
        """Its tensors by the names of its fields; `from_parts` is the inverse."""

    @classmethod
    @abstractmethod
    def from_parts(cls, parts: dict[str, Tensor], scheme: Scheme, shape: tuple[int, int]) -> QuantizedTensor:
        """The matrix that `parts` was taken from."""

    @abstractmethod
    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The matrix as `dtype`, computed in float32."""

    @abstractmethod
    def slice_rows(self, first: int, end: int) -> QuantizedTensor:
        """Rows `[first, end)`, cut at the last one; shares memory where it can."""

    @abstractmethod
    def rows(self, index: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Chosen rows `[len(index), columns]`, e.g. an embedding lookup: only they are decoded."""
