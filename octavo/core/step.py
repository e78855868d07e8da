"""What one forward pass computes: plain data handed from the scheduler to an executor."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive tokens of one sequence to be computed in this step.

    `tokens[i]` stands at position `start + i`; keys and values of positions `[0, start)` are already in the
    blocks. `block_table[p // block_size]` is the block that holds position `p`; the table covers at least
    `start + len(tokens)` positions. `logit_rows` are indices into `tokens` whose next-token logits are wanted,
    ascending: empty for an inner chunk of a prompt, the last index for a decode, every index for prompt
    log-probabilities.
    """

    sequence_id: int
    tokens: list[int]
    start: int
    block_table: list[int]
    logit_rows: list[int]


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass for many sequences.

    `block_copies` are `(source, target)` block ids: copy-on-write, done before anything is computed.
    The executor answers with float32 logits `[sum(len(c.logit_rows)), vocabulary]` in chunk order.
    """

    chunks: list[Chunk]
    block_copies: list[tuple[int, int]] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return sum(len(chunk.tokens) for chunk in self.chunks)

    @property
    def num_logit_rows(self) -> int:
        return sum(len(chunk.logit_rows) for chunk in self.chunks)
