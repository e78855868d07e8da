"""The memory plan: `--memory` is a hard total for the process, and this is the sum that keeps it.

    total = process (interpreter, libraries, tokenizer) + weights + scratch (a step's temporaries) + KV blocks

The first is measured, the next two are known or bounded from shapes, the blocks get what remains and are touched at
once, so that the process has its full size from the start.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.core.errors import CapacityError
from octavo.core.units import format_bytes

#: Without `--memory`: blocks for this many tokens, if half of the machine's available memory holds them.
DEFAULT_KV_TOKENS = 16384
#: A plan that holds less than one sequence of this many tokens (or of `max_model_len`) is refused.
SMALLEST_USEFUL_TOKENS = 256


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The sum. `max_model_len` is the longest sequence the engine will take."""

    process_bytes: int
    weight_bytes: int
    scratch_bytes: int
    block_bytes: int
    num_blocks: int
    block_size: int
    max_model_len: int
    limit_bytes: int | None = None

    @property
    def kv_bytes(self) -> int:
        return self.num_blocks * self.block_bytes

    @property
    def total_bytes(self) -> int:
        return self.process_bytes + self.weight_bytes + self.scratch_bytes + self.kv_bytes

    @property
    def num_kv_tokens(self) -> int:
        return self.num_blocks * self.block_size

    @property
    def concurrency(self) -> float:
        """Sequences of `max_model_len` tokens that fit at once."""
        return self.num_kv_tokens / self.max_model_len

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """The sum for people, a line a term."""
        blocks = f"{self.num_blocks} blocks of {self.block_size} tokens, {format_bytes(self.block_bytes)} each"
        limit = "no --memory given" if self.limit_bytes is None else f"--memory {format_bytes(self.limit_bytes)}"
        concurrency = f"{self.concurrency:.1f} sequences of {self.max_model_len} tokens at once"
        return [
            f"  process   {format_bytes(self.process_bytes):>10}  interpreter, libraries, tokenizer (measured)",
            f"  weights   {format_bytes(self.weight_bytes):>10}",
            f"  scratch   {format_bytes(self.scratch_bytes):>10}  temporaries of the largest step",
            f"+ KV blocks {format_bytes(self.kv_bytes):>10}  {blocks}: {concurrency}",
            f"= total     {format_bytes(self.total_bytes):>10}  {limit}",
        ]


def plan_memory(
    *,
    limit_bytes: int | None,
    available_bytes: int,
    process_bytes: int,
    weight_bytes: int,
    scratch_bytes: int,
    block_bytes: int,
    block_size: int,
    trained_model_len: int,
    max_model_len: int | None,
    max_num_seqs: int,
) -> MemoryPlan:
    """Blocks from what remains of `limit_bytes`; without a limit, blocks for `DEFAULT_KV_TOKENS` tokens (or for one
    sequence of an explicit `max_model_len`), within half of `available_bytes`. Never more than `max_num_seqs`
    sequences of full length can use.

    Raises `CapacityError` with the sum and the smallest total that works.
    """
    wanted_len = max_model_len or trained_model_len
    fixed_bytes = process_bytes + weight_bytes + scratch_bytes
    smallest_len = max_model_len or min(trained_model_len, SMALLEST_USEFUL_TOKENS)
    smallest_blocks = -(-smallest_len // block_size)
    most_blocks = max_num_seqs * -(-wanted_len // block_size)
    if limit_bytes is None:
        wanted_tokens = max(DEFAULT_KV_TOKENS, max_model_len or 0)
        num_blocks = min(-(-wanted_tokens // block_size), available_bytes // 2 // block_bytes)
    else:
        num_blocks = (limit_bytes - fixed_bytes) // block_bytes
    num_blocks = min(num_blocks, most_blocks)
    fitting_len = min(wanted_len, max(num_blocks, 1) * block_size)
    plan = MemoryPlan(
        process_bytes,
        weight_bytes,
        scratch_bytes,
        block_bytes,
        max(num_blocks, 0),
        block_size,
        max_model_len or fitting_len,
        limit_bytes,
    )
    if num_blocks < smallest_blocks:
        raise CapacityError(_too_small(plan, fixed_bytes + smallest_blocks * block_bytes, smallest_len))
    return plan


def _too_small(plan: MemoryPlan, smallest_bytes: int, smallest_len: int) -> str:
    given = "half of the available memory" if plan.limit_bytes is None else f"memory {format_bytes(plan.limit_bytes)}"
    advice = f"the smallest that works for one sequence of {smallest_len} tokens is {format_bytes(smallest_bytes)}"
    parts = f"process {format_bytes(plan.process_bytes)} + weights {format_bytes(plan.weight_bytes)}"
    parts += f" + scratch {format_bytes(plan.scratch_bytes)}"
    rest = f"leave {plan.num_blocks} KV blocks of {format_bytes(plan.block_bytes)}"
    return f"{given} is too small: {parts} {rest}; {advice} ({smallest_bytes} bytes)"
