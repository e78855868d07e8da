"""How many rows a matrix product computes at once, so that each row's bits never depend on the others."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

#: The size that defines a row's bits; others are used only where they agree with it.
BASE_ROWS = 16
#: Further sizes, the most useful first.
_CANDIDATE_ROWS = (4, 64, 256, 32, 128, 8)
#: Multiplications and additions spent on probing one weight shape: some tens of milliseconds.
_PROBE_OPERATIONS = 4e9

Shape = tuple[int, int]


class RowTiles:
    """Row counts that give the same bits, for each weight shape `[outputs, inputs]`; probed once, at start."""

    def __init__(self) -> None:
        self._sizes: dict[Shape, tuple[int, ...]] = {}

    def probe(self, weight: Tensor) -> None:
        """Find the sizes that agree with `BASE_ROWS` for `weight`'s shape, within a fixed amount of work."""
        shape = (weight.shape[0], weight.shape[1])
        if shape in self._sizes:
            return
        affordable = _PROBE_OPERATIONS / (2.0 * weight.numel()) - BASE_ROWS
        candidates = []
        for rows in _CANDIDATE_ROWS:
            affordable -= rows + max(0, rows - BASE_ROWS)
            if affordable >= 0 or rows == _CANDIDATE_ROWS[0]:
                candidates.append(rows)
        x = torch.randn(max(candidates) + 1, shape[1], generator=torch.Generator().manual_seed(0))
        expected = torch.cat([linear(_padded(piece, (BASE_ROWS,)), weight) for piece in x.split(BASE_ROWS)])
        agreed = [
            rows  # wherever in the product a row stands
            for rows in candidates
            if all(torch.equal(linear(x[i : i + rows].clone(), weight), expected[i : i + rows]) for i in (0, 1))
        ]
        agreed.append(BASE_ROWS)
        self._sizes[shape] = tuple(sorted(agreed))

    def sizes(self, weight: Tensor) -> tuple[int, ...]:
        """Ascending; probes a shape seen for the first time (whichever sizes are used, the bits are the same)."""
        self.probe(weight)
        return self._sizes[weight.shape[0], weight.shape[1]]

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """x `[rows, inputs]` float32 -> x @ weight.T + bias `[rows, outputs]`."""
        sizes = self.sizes(weight)
        pieces = [linear(_padded(piece, sizes), weight)[: len(piece)] for piece in x.split(sizes[-1])]
        y = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        return y if bias is None else y + bias

    def describe(self) -> dict[Shape, tuple[int, ...]]:
        """Sizes in use for each probed weight shape, for reports."""
        return dict(self._sizes)


def _padded(x: Tensor, sizes: Iterable[int]) -> Tensor:
    rows = min(size for size in sizes if size >= len(x))
    return x if rows == len(x) else pad(x, (0, 0, 0, rows - len(x)))
