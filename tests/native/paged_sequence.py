"""One layer's keys and values of one sequence in shuffled blocks, for attention tests, and attention over them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from octavo.ops.native import _kernels

Floats = NDArray[np.float32]
FORMATS = ["float32", "bfloat16", "int8", "int8 calibrated", "fp8", "fp8-e5m2"]
#: Largest code of the formats that have calibrated scales.
LARGEST = {"int8 calibrated": 127, "fp8": 448}
TILE, PART = _kernels.KEY_TILE, _kernels.KEY_PART


@dataclass(frozen=True)
class Heads:
    """Shape and rules of attention; `queries_per_kv` heads share a kv head."""

    head_dim: int = 64
    num_kv_heads: int = 2
    queries_per_kv: int = 3
    window: int = 0
    softcap: float = 0.0

    @property
    def num_heads(self) -> int:
        return self.num_kv_heads * self.queries_per_kv

    @property
    def scale(self) -> float:
        return float(np.float32(self.head_dim**-0.5))


@dataclass
class PagedSequence:
    """`num_tokens` random keys and values `[tokens, kv heads, head_dim]`, in blocks whose memory held `garbage`."""

    heads: Heads
    num_tokens: int
    format: str = "bfloat16"
    block_size: int = 16
    garbage: int = 0
    seed: int = 0
    unit: str = ""
    keys: Floats = field(init=False)
    values: Floats = field(init=False)

    def __post_init__(self) -> None:
        shape = (self.num_tokens, self.heads.num_kv_heads, self.heads.head_dim)
        random = np.random.default_rng(self.seed)
        self.keys, self.values = (random.standard_normal(shape).astype(np.float32) for _ in range(2))
        num_blocks = -(-self.num_tokens // self.block_size)
        self.table = random.permutation(num_blocks + 3)[:num_blocks].astype(np.int32)
        layout = (self.block_size, self.heads.num_kv_heads, self.heads.head_dim, self.format)
        num_bytes = _kernels.PagedLayer.bytes_per_block(*layout)
        self.scales = self.head_scales()
        self.memory = np.full((num_blocks + 3, num_bytes), self.garbage, np.uint8)
        self.layer = _kernels.PagedLayer(self.memory, self.table, *layout, list(map(float, self.scales)))
        self.write(0, self.keys, self.values)

    def head_scales(self) -> Floats:
        """The keys' scale of each kv head, then the values': numbers beyond 2.5 to 4 are clamped."""
        if self.format not in LARGEST:
            return np.empty(0, np.float32)
        return np.linspace(2.5, 4, 2 * self.heads.num_kv_heads, dtype=np.float32) / np.float32(LARGEST[self.format])

    def write(self, first_position: int, keys: Floats, values: Floats) -> None:
        _kernels.write_kv(self.layer, first_position, keys, values, self.unit)

    def queries(self, count: int, seed: int = 1) -> Floats:
        """`[count, heads, head_dim]`"""
        shape = (count, self.heads.num_heads, self.heads.head_dim)
        return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)

    def attend(
        self, q: Floats, first_position: int, queries_per_item: int | None = None, unit: str | None = None
    ) -> Floats:
        """Items of so many queries, parts in order, as the step program does it."""
        y = np.empty_like(q)
        step = queries_per_item or len(q)
        for first in range(0, len(q), step):
            y[first : first + step] = self.attend_item(q[first : first + step].copy(), first_position + first, unit)
        return y

    def attend_item(
        self, q: Floats, first_position: int, unit: str | None = None, from_tile: int | None = None
    ) -> Floats:
        """`from_tile`: the position where the first part begins, the oldest tile that is seen if None."""
        unit = self.unit if unit is None else unit
        y = np.empty_like(q)
        end = first_position + len(q)
        oldest = max(0, first_position - self.heads.window + 1) if self.heads.window else 0
        start = oldest // TILE * TILE if from_tile is None else from_tile
        for kv_head in range(self.heads.num_kv_heads):
            whole = None
            for part_start in range(start // PART * PART, end, PART):
                part, _ = self.part(len(q))
                bounds = max(start, part_start), min(end, part_start + PART)
                self.attend_part(q, first_position, kv_head, bounds, part, unit)
                if whole is None:
                    whole = part
                else:
                    _kernels.fold_part(whole, part, unit)
            assert whole is not None
            _kernels.finish_part(self.layer, whole, kv_head, y, unit)
        return y

    def attend_part(
        self,
        q: Floats,
        first_position: int,
        kv_head: int,
        bounds: tuple[int, int],
        out: _kernels.AttentionPart,
        unit: str | None = None,
    ) -> None:
        h = self.heads
        unit = self.unit if unit is None else unit
        _kernels.attend_part(self.layer, q, first_position, kv_head, *bounds, out, h.scale, h.softcap, h.window, unit)

    def part(self, num_queries: int) -> tuple[_kernels.AttentionPart, tuple[Floats, Floats, Floats]]:
        """A part and its output `[rows, head_dim]`, maxima `[rows]` and totals `[rows]`."""
        rows = num_queries * self.heads.queries_per_kv
        shapes = ((rows, self.heads.head_dim), (rows,), (rows,))
        output, highest, total = (np.full(shape, np.nan, np.float32) for shape in shapes)
        return _kernels.AttentionPart(output, highest, total), (output, highest, total)

    def stored(self, x: Floats, scales: Floats) -> NDArray[np.float64]:
        """What the format keeps of keys or values; `scales` of each kv head, if it is calibrated."""
        if self.format in LARGEST:
            scales = scales[:, None]
            codes = np.clip(x / scales, -LARGEST[self.format], LARGEST[self.format])
            return (np.rint(codes) if self.format != "fp8" else as_fp8(codes, torch.float8_e4m3fn)) * scales.astype(
                float
            )
        if self.format == "fp8-e5m2":
            return as_fp8(x, torch.float8_e5m2)
        if self.format == "bfloat16":
            return torch.from_numpy(x).bfloat16().double().numpy()
        if self.format == "int8":
            scales = np.abs(x).max(-1, keepdims=True) / np.float32(127)
            codes = np.rint(x * (np.float32(127) / np.abs(x).max(-1, keepdims=True)))
            return codes.astype(np.float64) * scales
        return x.astype(np.float64)

    def stored_keys_and_values(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        scales = self.scales.reshape(2, -1)
        return self.stored(self.keys, scales[0]), self.stored(self.values, scales[1])

    def expected(self, q: Floats, first_position: int) -> NDArray[np.float64]:
        """Attention in float64 over what is stored."""
        h = self.heads
        keys, values = (np.repeat(x, h.queries_per_kv, 1) for x in self.stored_keys_and_values())
        scores = np.einsum("qhd,khd->hqk", q.astype(np.float64), keys) * h.scale
        if h.softcap:
            scores = h.softcap * np.tanh(scores / h.softcap)
        query, key = first_position + np.arange(len(q))[:, None], np.arange(self.num_tokens)[None]
        seen = (key <= query) & (key > query - h.window if h.window else True)
        weights = np.exp(np.where(seen, scores - np.where(seen, scores, -np.inf).max(-1, keepdims=True), -np.inf))
        return np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), values)


def as_fp8(x: Floats, dtype: torch.dtype) -> NDArray[np.float64]:
    return torch.from_numpy(x).to(dtype).double().numpy()
