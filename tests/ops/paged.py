"""Sequences run through an executor in chunks of any size, in blocks of their own in random order."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from octavo.core.block_table import BlockTable
from octavo.core.step import Chunk, Step
from octavo.ops.base import Executor


class Paged:
    """`seed` decides which blocks are handed out and how chunks are cut and ordered."""

    def __init__(self, executor: Executor, seed: int = 0) -> None:
        self.executor = executor
        self.random = random.Random(seed)
        self.free = list(range(executor.num_blocks))
        self.random.shuffle(self.free)
        self.num_sequences = 0

    def table(self, length: int) -> BlockTable:
        return BlockTable(self.free.pop() for _ in range(-(-length // self.executor.block_size)))

    def alone(self, tokens: Sequence[int]) -> Tensor:
        """Logits of all positions, computed in one chunk."""
        return self.run([tokens], len(tokens))

    def run(
        self, sequences: Sequence[Sequence[int]], largest: int, start: int = 0, table: BlockTable | None = None
    ) -> Tensor:
        """Logits of all positions from `start`, sequence after sequence, in chunks of 1 to `largest` tokens that share
        their steps. The blocks are free again afterwards, unless `table` was given."""
        tables = [table or self.table(len(tokens)) for tokens in sequences]
        ids = [self.num_sequences + i for i in range(len(sequences))]
        self.num_sequences += len(sequences)
        rows: list[list[Tensor]] = [[] for _ in sequences]
        done = [start] * len(sequences)
        while any(done[i] < len(tokens) for i, tokens in enumerate(sequences)):
            chunks = list(self._chunks(sequences, ids, tables, done, largest))
            logits = self.executor.execute(Step(chunks)).clone().split([len(chunk.tokens) for chunk in chunks])
            for chunk, piece in zip(chunks, logits, strict=True):
                i = chunk.sequence_id - ids[0]
                rows[i].append(piece)
                done[i] += len(chunk.tokens)
        if table is None:
            self.free += [block for each in tables for block in each]
            self.random.shuffle(self.free)
        return torch.cat([torch.cat(pieces) for pieces in rows])

    def _chunks(
        self,
        sequences: Sequence[Sequence[int]],
        ids: Sequence[int],
        tables: Sequence[BlockTable],
        done: Sequence[int],
        largest: int,
    ) -> Iterator[Chunk]:
        order = [i for i, tokens in enumerate(sequences) if done[i] < len(tokens)]
        self.random.shuffle(order)
        for i in order:
            tokens = list(sequences[i][done[i] : done[i] + self.random.randint(1, largest)])
            yield Chunk(ids[i], tokens, done[i], tables[i], list(range(len(tokens))))

    def run_cut(self, tokens: Sequence[int], boundary: int) -> Tensor:
        """Logits of all positions, computed as `[0, boundary)` and the rest."""
        table = self.table(len(tokens))
        pieces = []
        for first, end in ((0, boundary), (boundary, len(tokens))):
            if first < end:
                chunk = Chunk(self.num_sequences, list(tokens[first:end]), first, table, list(range(end - first)))
                pieces.append(self.executor.execute(Step([chunk])).clone())
        self.num_sequences += 1
        self.free += list(table)
        return torch.cat(pieces)
