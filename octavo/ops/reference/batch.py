"""The reference executor's view of a step: tensors of tokens, positions and slots, and the plan of attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import pad

from octavo.core.step import Chunk, Step
from octavo.ops.base import Rope
from octavo.ops.reference.attention_plan import AttentionPlan, QuerySpan, make_plan
from octavo.ops.reference.kv_storage import KVStorage


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows are tokens, chunk after chunk.

    `tokens`, `positions` and `row_slots` int64 `[rows]`: what a token is, where it stands in its sequence, where its
    key and value go. `slots` int64 `[sequences, longest]`: slot of every position of each sequence, filled up with
    `zero_slot`. `logit_rows` int64: rows whose logits are wanted. `storage` None: keys and values live only within
    the call (`whole_prompts`), and slots are rows.
    """

    tokens: Tensor
    positions: Tensor
    row_slots: Tensor
    slots: Tensor
    zero_slot: int
    spans: tuple[QuerySpan, ...]
    logit_rows: Tensor
    storage: KVStorage | None = None
    _plans: dict[tuple[int | None, tuple[int, ...]], AttentionPlan] = field(default_factory=dict)
    _rotations: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        return len(self.tokens)

    def plan(self, window: int | None, max_items: tuple[int, ...]) -> AttentionPlan:
        """How attention with this window is cut into equal pieces; made once a step, shared by its layers."""
        key = (window, max_items)
        if key not in self._plans:
            self._plans[key] = make_plan(self.spans, self.slots, self.zero_slot, window, max_items)
        return self._plans[key]

    def rotation(self, rope: Rope) -> tuple[Tensor, Tensor]:
        """cos and sin, float32 `[rows, 1, rotary_dim / 2]`; made once a step for each rotation."""
        if id(rope) not in self._rotations:
            self._rotations[id(rope)] = make_rotation(rope, self.positions)
        return self._rotations[id(rope)]

    def keys_and_values(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Keep this step's keys and values `[rows, kv_heads, head_dim]`; returns all of the layer's, by slot."""
        if self.storage is None:
            return pad(keys, (0, 0, 0, 0, 0, 1)), pad(values, (0, 0, 0, 0, 0, 1))
        self.storage.write(layer, self.row_slots, keys, values)
        return self.storage.layer(layer)


def paged_batch(step: Step, storage: KVStorage) -> Batch:
    """A step whose past lies in `storage`."""
    chunks = step.chunks
    tables = [_slots_of(chunk, storage.block_size) for chunk in chunks]
    spans = _spans([len(chunk.tokens) for chunk in chunks], [chunk.start for chunk in chunks])
    logit_rows = [span.first_row + row for span, chunk in zip(spans, chunks, strict=True) for row in chunk.logit_rows]
    row_slots = [table[chunk.start :] for table, chunk in zip(tables, chunks, strict=True)]
    return Batch(
        tokens=torch.tensor([token for chunk in chunks for token in chunk.tokens], dtype=torch.int64),
        positions=_positions(spans),
        row_slots=torch.cat(row_slots),
        slots=_stack(tables, storage.zero_slot),
        zero_slot=storage.zero_slot,
        spans=spans,
        logit_rows=torch.tensor(logit_rows, dtype=torch.int64),
        storage=storage,
    )


def whole_prompts(token_lists: Sequence[Sequence[int]], logit_rows: Sequence[int] | None = None) -> Batch:
    """Sequences from their first token to their last, each attending to itself; nothing is kept.

    For evaluation and calibration. `logit_rows` index the concatenated tokens; None asks for all of them.
    """
    lengths = [len(tokens) for tokens in token_lists]
    spans = _spans(lengths, [0] * len(lengths))
    num_rows = sum(lengths)
    rows = torch.arange(num_rows)
    wanted = rows if logit_rows is None else torch.tensor(list(logit_rows), dtype=torch.int64)
    return Batch(
        tokens=torch.tensor([token for tokens in token_lists for token in tokens], dtype=torch.int64),
        positions=_positions(spans),
        row_slots=rows,
        slots=_stack(list(rows.split(lengths)), num_rows),
        zero_slot=num_rows,
        spans=spans,
        logit_rows=wanted,
    )


def make_rotation(rope: Rope, positions: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of position times frequency, times the magnitude: float32 `[rows, 1, rotary_dim / 2]`."""
    frequencies = rope.inverse_frequencies
    if rope.dynamic is not None:
        rotary_dim = 2 * len(frequencies)
        trained, factor = rope.dynamic.trained_positions, rope.dynamic.factor
        length = (positions + 1).clamp(min=trained).to(torch.float64)
        growth = factor * length / trained - (factor - 1)
        bases = rope.dynamic.base * growth ** (rotary_dim / (rotary_dim - 2))
        exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim
        frequencies = (1.0 / bases[:, None] ** exponents).to(torch.float32)
    angles = positions[:, None].to(torch.float32) * frequencies
    return (angles.cos() * rope.magnitude).unsqueeze(1), (angles.sin() * rope.magnitude).unsqueeze(1)


def _slots_of(chunk: Chunk, block_size: int) -> Tensor:
    """Slots of positions `[0, start + tokens)`."""
    length = chunk.start + len(chunk.tokens)
    blocks = torch.tensor(chunk.block_table.blocks[: -(-length // block_size)], dtype=torch.int64)
    return (blocks[:, None] * block_size + torch.arange(block_size)).flatten()[:length]


def _spans(lengths: Sequence[int], starts: Sequence[int]) -> tuple[QuerySpan, ...]:
    spans, first_row = [], 0
    for sequence, (length, start) in enumerate(zip(lengths, starts, strict=True)):
        spans.append(QuerySpan(sequence, first_row, length, start))
        first_row += length
    return tuple(spans)


def _positions(spans: Sequence[QuerySpan]) -> Tensor:
    return torch.cat([torch.arange(span.start, span.start + span.num_rows) for span in spans])


def _stack(tables: Sequence[Tensor], zero_slot: int) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(tables), batch_first=True, padding_value=zero_slot)
