"""`octavo bench prefix`: requests that begin alike, with the prefix cache and without."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from octavo.engine import LLM
from octavo.measure.bench.offline import (
    Batch,
    Progress,
    check_at_least_one,
    check_lengths,
    prompt_source,
    run_batch,
)


@dataclass(frozen=True, slots=True)
class PrefixWork:
    """`num_prompts` requests: `num_prefixes` groups that share `prefix_len` tokens, then `suffix_len` of their own.

    A prompt count that the groups do not divide evenly gives the first groups one more.
    """

    num_prompts: int = 32
    num_prefixes: int = 1
    prefix_len: int = 512
    suffix_len: int = 32
    output_len: int = 64
    seed: int = 0

    def check(self, llm: LLM) -> None:
        """Raises `InvalidField`."""
        for name in ("num_prompts", "num_prefixes", "prefix_len", "suffix_len"):
            check_at_least_one("--" + name.replace("_", "-"), getattr(self, name))
        check_lengths(llm, self.prefix_len + self.suffix_len, self.output_len)

    def groups(self) -> list[int]:
        """Prompts of each prefix."""
        each, rest = divmod(self.num_prompts, self.num_prefixes)
        return [each + (1 if place < rest else 0) for place in range(self.num_prefixes)]


@dataclass(frozen=True, slots=True)
class PrefixRun:
    """One pass over the work; `num_cached_tokens` of `num_prompt_tokens` were found in the cache."""

    name: str
    seconds: float
    num_output_tokens: int
    num_prompt_tokens: int
    num_cached_tokens: int

    @property
    def output_tokens_per_second(self) -> float:
        return self.num_output_tokens / self.seconds

    def to_dict(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in self.__slots__}
        return {**fields, "output_tokens_per_second": self.output_tokens_per_second}

    def line(self) -> str:
        """For people."""
        return (
            f"{self.name:24} {self.output_tokens_per_second:10.1f} output tokens/s, {self.seconds:7.2f} s, "
            f"{self.num_cached_tokens} of {self.num_prompt_tokens} prompt tokens from the cache"
        )


def measure_prefix(
    llm: LLM, work: PrefixWork, name: str, progress: Progress = lambda text: None
) -> tuple[PrefixRun, list[list[int]]]:
    """One pass, and the tokens it gave. The same seed is the same work: another engine's tokens must be equal."""
    work.check(llm)
    source = prompt_source(llm, work.seed)
    progress(f"{name}: warming up")
    longest = work.prefix_len + work.suffix_len
    run_batch(llm, source.distinct(1, longest), min(work.output_len, 2))
    prompts = [
        prompt
        for count in work.groups()
        for prompt in source.with_shared_prefix(count, work.prefix_len, work.suffix_len)
    ]
    progress(f"{name}: {len(prompts)} requests")
    batch = run_batch(llm, prompts, work.output_len)
    return _run(name, batch, len(prompts) * longest), [each.outputs[0].token_ids for each in batch.results]


def _run(name: str, batch: Batch, num_prompt_tokens: int) -> PrefixRun:
    return PrefixRun(name, batch.seconds, batch.num_output_tokens, num_prompt_tokens, batch.num_cached_tokens)
