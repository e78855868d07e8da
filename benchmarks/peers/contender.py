"""One variant of one peer through one round: started, measured workload by workload, paused in between."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from benchmarks.peers.peer import Peer, Variant
from benchmarks.peers.process import PeerProcess
from benchmarks.peers.workload import Workload
from octavo.measure.bench.prompts import PromptSource

#: Blocks are at most this long at any peer; a sequence's memory is rounded up to it.
LARGEST_BLOCK_TOKENS = 128
#: KV memory beyond what runs at once, for what prefix caches keep from earlier work.
SPARE_KV_TOKENS = 1024


@dataclass(frozen=True)
class Sizes:
    """What a peer is told to be ready for."""

    max_num_seqs: int
    max_model_len: int
    num_kv_tokens: int

    @classmethod
    def of(cls, workloads: Sequence[Workload], max_num_seqs: int) -> Sizes:
        def blocks(workload: Workload) -> int:
            return -(-(workload.prompt_tokens + workload.new_tokens) // LARGEST_BLOCK_TOKENS)

        longest = max(map(blocks, workloads)) * LARGEST_BLOCK_TOKENS
        together = max(min(each.num_requests, max_num_seqs) * blocks(each) for each in workloads)
        return cls(max_num_seqs, longest, together * LARGEST_BLOCK_TOKENS + SPARE_KV_TOKENS)


@dataclass(frozen=True)
class Contender:
    peer: Peer
    variant: Variant

    @property
    def name(self) -> str:
        return f"{self.peer.name} {self.variant.name}"


class Running:
    """A contender's process in one round. `seconds_to_first_token` counts from the start of the process."""

    def __init__(self, contender: Contender, sizes: Sizes, prompts: PromptSource) -> None:
        self.contender = contender
        self._at_once = sizes.max_num_seqs
        self._process = PeerProcess(contender.peer)
        try:
            self.facts = self._load(contender.variant, sizes)
            self._seconds(prompts.distinct(1, 16), 1)
            self.seconds_to_first_token = time.perf_counter() - self._process.started
            self._process.pause()
        except BaseException:
            self._process.close()
            raise

    def measure(self, workload: Workload, prompts: PromptSource) -> float | None:
        """Tokens a second (None: lost in noise), after a warm-up on other prompts; paused again when this returns."""
        self._process.resume()
        try:
            workload.warm_up(self._seconds, prompts, self._at_once)
            return workload.tokens_per_second(self._seconds, prompts)
        finally:
            with suppress(OSError):
                self._process.pause()

    def peak_rss_bytes(self) -> int:
        """Of the whole process tree so far."""
        self._process.resume()
        try:
            return self._process.peak_rss_bytes()
        finally:
            self._process.pause()

    def close(self) -> None:
        self._process.close()

    def _load(self, variant: Variant, sizes: Sizes) -> dict[str, Any]:
        return self._process.load(
            model=str(variant.model),
            max_num_seqs=sizes.max_num_seqs,
            max_model_len=sizes.max_model_len,
            num_kv_tokens=sizes.num_kv_tokens,
            **variant.settings,
        )

    def _seconds(self, prompts: list[list[int]], new_tokens: int) -> float:
        return self._process.run(prompts, new_tokens)[0]
