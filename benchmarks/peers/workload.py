"""The work that is compared: token-id prompts, greedy, no early stop; every prompt of a run is distinct."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from octavo.measure.bench.prompts import PromptSource

#: Prompts are drawn from these ids: inside every vocabulary of the comparison, above its control tokens.
TOKEN_IDS = range(300, 40_000)

#: Prompts and the number of new tokens -> seconds.
Run = Callable[[list[list[int]], int], float]


def prompts_of(seed: str) -> PromptSource:
    """Prompts that are never the same twice: caches that outlive a run help nobody."""
    return PromptSource(TOKEN_IDS, seed)


@dataclass(frozen=True)
class Workload:
    """`num_requests` prompts of `shared_tokens` common and `own_tokens` own tokens, each continued by `new_tokens`.

    `measures` is what `tokens_per_second` counts: "decode" (new tokens after the first, the time of a run that gives
    only the first is taken away), "prefill" (prompt tokens) or "output" (new tokens over the whole time). `floor` and
    `aim` are the ratios to the best peer that are wanted.
    """

    key: str
    name: str
    measures: str
    num_requests: int
    own_tokens: int
    new_tokens: int
    shared_tokens: int = 0
    floor: float | None = None
    aim: float | None = None

    @property
    def prompt_tokens(self) -> int:
        return self.shared_tokens + self.own_tokens

    def draw(self, prompts: PromptSource) -> list[list[int]]:
        if self.shared_tokens:
            return prompts.with_shared_prefix(self.num_requests, self.shared_tokens, self.own_tokens)
        return prompts.distinct(self.num_requests, self.own_tokens)

    def tokens_per_second(self, run: Run, prompts: PromptSource) -> float | None:
        """Measured by one or two runs of `run` on prompts of their own; None where noise hides the difference."""
        if self.measures == "prefill":
            return self.num_requests * self.prompt_tokens / run(self.draw(prompts), 1)
        whole = run(self.draw(prompts), self.new_tokens)
        if self.measures == "output":
            return self.num_requests * self.new_tokens / whole
        first = run(self.draw(prompts), 1)
        return self.num_requests * (self.new_tokens - 1) / (whole - first) if whole > first else None

    def warm_up(self, run: Run, prompts: PromptSource, at_once: int) -> None:
        """The same shapes with few tokens, so that nobody compiles or allocates while measured."""
        smaller = replace(self, num_requests=min(self.num_requests, at_once))
        run(smaller.draw(prompts), min(self.new_tokens, 3))

    def scaled(self, scale: float) -> Workload:
        """Fewer requests and new tokens, for trying out; the name says so."""
        if scale == 1.0:
            return self
        requests, new = (
            max(1, round(self.num_requests * scale)),
            max(min(self.new_tokens, 4), round(self.new_tokens * scale)),
        )
        return replace(self, name=f"{self.name} (x {scale:g})", num_requests=requests, new_tokens=new)


TABLE = (
    Workload("offline", "offline: 32 requests, 256 in + 128 out, 16 at a time", "output", 32, 256, 128, floor=3, aim=5),
    Workload("decode_16", "decode, 1 stream, context 16", "decode", 1, 16, 129, floor=1.6, aim=2),
    Workload("decode_1024", "decode, 1 stream, context 1,024", "decode", 1, 1024, 129, floor=2.5, aim=3),
    Workload("prefill_512", "prefill 512 tokens", "prefill", 1, 512, 1, floor=2, aim=3),
    Workload("prefill_1024", "prefill 1,024 tokens", "prefill", 1, 1024, 1, floor=2, aim=3),
    Workload("shared_prefix", "shared prefix: 32 requests, 512 common + 32 own in, 64 out", "output", 32, 32, 64,
             shared_tokens=512, floor=4, aim=6),
)  # fmt: skip

STREAMS = tuple(
    Workload(f"streams_{count}", f"decode, {count} streams, context 16", "decode", count, 16, 65)
    for count in (1, 4, 16, 64)
)
