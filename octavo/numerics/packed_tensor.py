"""A matrix on an integer grid as it lives in memory: packed codes, scales, zero points."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.numerics.packing import pack_codes, unpack_codes
from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.numerics.scheme import IntegerScheme, Scheme


@dataclass(frozen=True, slots=True)
class PackedTensor(QuantizedTensor):
    """A `[rows, columns]` matrix whose value is `(code - zero_point) * scale`, group by group along each row.

    `words` int32 `[rows, ceil(columns * bits / 32)]`, `scale` float `[rows, groups]`, `zero_point` int8
    `[rows, groups]` or None when symmetric.
    """

    words: Tensor
    scale: Tensor
    zero_point: Tensor | None
    scheme: IntegerScheme
    shape: tuple[int, int]

    @classmethod
    def from_codes(cls, codes: Tensor, scale: Tensor, zero_point: Tensor | None, scheme: IntegerScheme) -> PackedTensor:
        """Pack signed codes `[rows, columns]`. Scales keep their dtype: it is the storage dtype."""
        rows, columns = codes.shape
        words = pack_codes(codes, scheme.bits)
        return cls(words, scale, zero_point, scheme, (rows, columns))

    def parts(self) -> dict[str, Tensor]:
        parts = {"words": self.words, "scale": self.scale}
        return parts if self.zero_point is None else {**parts, "zero_point": self.zero_point}

    @classmethod
    def from_parts(cls, parts: dict[str, Tensor], scheme: Scheme, shape: tuple[int, int]) -> PackedTensor:
        assert isinstance(scheme, IntegerScheme)
        return cls(parts["words"], parts["scale"], parts.get("zero_point"), scheme, shape)

    @property
    def num_bytes(self) -> int:
        zero_bytes = 0 if self.zero_point is None else self.zero_point.nbytes
        return self.words.nbytes + self.scale.nbytes + zero_bytes

    def codes(self) -> Tensor:
        """Signed int8 codes `[rows, columns]`."""
        return unpack_codes(self.words, self.scheme.bits, self.shape[1])

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        return _decode(self.codes(), self.scale, self.zero_point).to(dtype)

    def slice_rows(self, first: int, end: int) -> PackedTensor:
        zero_point = None if self.zero_point is None else self.zero_point[first:end]
        words = self.words[first:end]
        return PackedTensor(words, self.scale[first:end], zero_point, self.scheme, (len(words), self.shape[1]))

    def rows(self, index: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        codes = unpack_codes(self.words[index], self.scheme.bits, self.shape[1])
        zero_point = None if self.zero_point is None else self.zero_point[index]
        return _decode(codes, self.scale[index], zero_point).to(dtype)


def _decode(codes: Tensor, scale: Tensor, zero_point: Tensor | None) -> Tensor:
    """(code - zero_point) * scale in float32: the difference is exact, the product rounds once."""
    rows, columns = codes.shape
    if zero_point is None:
        values = codes.to(torch.float32)
    else:
        grouped = codes.view(rows, scale.shape[1], -1).to(torch.int16)
        values = grouped.sub_(zero_point.unsqueeze(-1)).to(torch.float32)
    values.view(rows, scale.shape[1], -1).mul_(scale.to(torch.float32).unsqueeze(-1))
    return values.view(rows, columns)
