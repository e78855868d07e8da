"""`octavo bench throughput`: many requests at once, offline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from octavo.core.units import format_bytes
from octavo.engine import LLM
from octavo.engine.process_memory import peak_resident_bytes
from octavo.measure.bench.offline import (
    Progress,
    check_at_least_one,
    check_lengths,
    prompt_source,
    run_batch,
)


@dataclass(frozen=True, slots=True)
class Throughput:
    """`num_prompts` requests of `input_len` tokens, each continued by `output_len`, in `seconds`."""

    num_prompts: int
    input_len: int
    output_len: int
    seconds: float
    num_steps: int
    num_preemptions: int
    peak_rss_bytes: int

    @property
    def output_tokens_per_second(self) -> float:
        return self.num_prompts * self.output_len / self.seconds

    @property
    def total_tokens_per_second(self) -> float:
        """Prompt tokens count too."""
        return self.num_prompts * (self.input_len + self.output_len) / self.seconds

    def to_dict(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in self.__slots__},
            "requests_per_second": self.num_prompts / self.seconds,
            "output_tokens_per_second": self.output_tokens_per_second,
            "total_tokens_per_second": self.total_tokens_per_second,
        }

    def lines(self) -> list[str]:
        """For people."""
        return [
            f"{self.num_prompts} requests, {self.input_len} tokens in and {self.output_len} out each: "
            f"{self.seconds:.2f} s",
            f"  {self.num_prompts / self.seconds:10.2f} requests/s",
            f"  {self.output_tokens_per_second:10.1f} output tokens/s",
            f"  {self.total_tokens_per_second:10.1f} tokens/s with the prompts",
            f"  {self.num_steps} steps, {self.num_preemptions} preemptions",
            f"  {format_bytes(self.peak_rss_bytes)} peak RSS",
        ]


def measure_throughput(
    llm: LLM, num_prompts: int, input_len: int, output_len: int, seed: int = 0, progress: Progress = lambda text: None
) -> Throughput:
    """One run over distinct prompts, after a short one of the same shape that is not counted."""
    check_at_least_one("--num-prompts", num_prompts)
    check_lengths(llm, input_len, output_len)
    source = prompt_source(llm, seed)
    progress("warming up")
    run_batch(llm, source.distinct(min(num_prompts, llm.config.max_num_seqs), input_len), min(output_len, 2))
    before = llm.engine.stats
    progress(f"{num_prompts} requests")
    batch = run_batch(llm, source.distinct(num_prompts, input_len), output_len)
    after = llm.engine.stats
    return Throughput(
        num_prompts,
        input_len,
        output_len,
        batch.seconds,
        after.num_steps - before.num_steps,
        after.num_preemptions - before.num_preemptions,
        peak_resident_bytes(),
    )
