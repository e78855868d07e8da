"""What one forward pass computes: plain data handed from the scheduler to an executor, which changes nothing in it.

Not frozen: a frozen dataclass takes five times as long to make, and these are made for every sequence in every step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.core.block_table import BlockTable


@dataclass(slots=True)
class Chunk:
    """Consecutive tokens of one sequence to be computed in this step.

    `tokens[i]` stands at position `start + i`; keys and values of positions `[0, start)` are already in the
    blocks. `block_table[p // block_size]` is the block that holds position `p`; the table covers at least
    `start + len(tokens)` positions. It is the living table, not a copy: it changes after the step, so whoever keeps
    it copies `block_table.blocks`. An executor may keep that copy from step to step under
    `(sequence_id, block_table.epoch)` and append what is new: within an epoch a table only grows. `logit_rows` are
    indices into `tokens` whose next-token logits are wanted, ascending: empty for an inner chunk of a prompt, the
    last index for a decode, every index for prompt log-probabilities.
    """

    sequence_id: int
    tokens: list[int]
    start: int
    block_table: BlockTable
    logit_rows: list[int]


@dataclass(slots=True)
class Step:
    """One forward pass for many sequences.

    `block_copies` are `(source, target)` block ids: copy-on-write, done before anything is computed.
    `ended_sequences` are ids whose tables were closed since the step before (ended, aborted or preempted): an executor
    drops what it keeps of them before it looks at the chunks. Every id that was in a chunk comes here once; a
    preempted sequence may come back later, with a table of another epoch.
    The executor answers with float32 logits `[sum(len(c.logit_rows)), vocabulary]` in chunk order.
    """

    chunks: list[Chunk]
    block_copies: list[tuple[int, int]] = field(default_factory=list)
    ended_sequences: list[int] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return sum(len(chunk.tokens) for chunk in self.chunks)

    @property
    def num_logit_rows(self) -> int:
        return sum(len(chunk.logit_rows) for chunk in self.chunks)
