"""`octavo bench latency`: time to first token and time per output token, by batch and context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from octavo.core.errors import InvalidField
from octavo.engine import LLM
from octavo.measure.bench.offline import Progress, check_at_least_one, check_lengths, prompt_source, run_batch
from octavo.measure.bench.summary import Summary


@dataclass(frozen=True, slots=True)
class LatencyPoint:
    """One batch size at one context; the summaries are over all requests of all iterations. Seconds.

    `tpot` is None when one token is made. `end_to_end` is one value an iteration.
    """

    batch_size: int
    input_len: int
    output_len: int
    ttft: Summary
    tpot: Summary | None
    end_to_end: Summary

    def to_dict(self) -> dict[str, Any]:
        return {
            "batch_size": self.batch_size,
            "input_len": self.input_len,
            "output_len": self.output_len,
            "ttft": self.ttft.to_dict("seconds"),
            "tpot": None if self.tpot is None else self.tpot.to_dict("seconds"),
            "end_to_end": self.end_to_end.to_dict("seconds"),
        }

    def lines(self) -> list[str]:
        """For people."""
        tpot = "-" if self.tpot is None else self.tpot.milliseconds()
        return [
            f"batch {self.batch_size}, {self.input_len} tokens in, {self.output_len} out",
            f"  time to first token    {self.ttft.milliseconds()}",
            f"  time per output token  {tpot}",
            f"  whole batch            {self.end_to_end.milliseconds()}",
        ]


@dataclass(frozen=True, slots=True)
class LatencyPlan:
    """Every batch size is measured at every input length: `num_iters` times, after `num_iters_warmup` unseen ones."""

    batch_sizes: Sequence[int] = (1,)
    input_lens: Sequence[int] = (32,)
    output_len: int = 128
    num_iters: int = 5
    num_iters_warmup: int = 1
    seed: int = 0

    def check(self, llm: LLM) -> None:
        """Raises `InvalidField` for what this engine cannot run as meant."""
        check_at_least_one("--num-iters", self.num_iters)
        if self.num_iters_warmup < 0:
            raise InvalidField("--num-iters-warmup", self.num_iters_warmup, "must be 0 or more")
        for batch_size in self.batch_sizes:
            check_at_least_one("--batch-size", batch_size)
        for input_len in self.input_lens:
            check_lengths(llm, input_len, self.output_len)
            needed, there = max(self.batch_sizes) * (input_len + self.output_len), llm.memory_plan.num_kv_tokens
            if needed > there:
                raise InvalidField(
                    "--batch-size", max(self.batch_sizes), f"needs KV memory for {needed} tokens, there is for {there}"
                )


def measure_latency(llm: LLM, plan: LatencyPlan, progress: Progress = lambda text: None) -> list[LatencyPoint]:
    """A point for each pair of batch size and input length. Prompts are distinct, so no cache helps."""
    plan.check(llm)
    source = prompt_source(llm, plan.seed)
    points = []
    for input_len in plan.input_lens:
        for batch_size in plan.batch_sizes:
            batches = []
            for iteration in range(plan.num_iters_warmup + plan.num_iters):
                progress(f"batch {batch_size}, {input_len} in: {iteration} of {plan.num_iters_warmup + plan.num_iters}")
                batches.append(run_batch(llm, source.distinct(batch_size, input_len), plan.output_len))
            points.append(_point(batch_size, input_len, plan, batches[plan.num_iters_warmup :]))
    return points


def _point(batch_size: int, input_len: int, plan: LatencyPlan, batches: Sequence[Any]) -> LatencyPoint:
    ttft = Summary.of([value for batch in batches for value in batch.ttft_seconds])
    end_to_end = Summary.of([batch.seconds for batch in batches])
    assert ttft is not None
    assert end_to_end is not None
    tpot = Summary.of([value for batch in batches for value in batch.tpot_seconds])
    return LatencyPoint(batch_size, input_len, plan.output_len, ttft, tpot, end_to_end)
