"""Rounds: every contender does every workload in turn, so that a neighbour of the machine slows all of them alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.peers.contender import Contender, Running, Sizes
from benchmarks.peers.process import PeerFailed
from benchmarks.peers.workload import Workload, prompts_of

Say = Callable[[str], None]
#: Beside the workloads' own keys.
START, MEMORY = "seconds_to_first_token", "peak_rss_bytes"


@dataclass
class Comparison:
    """`figures[key][contender name]` are one value a round: tokens/s of a workload, seconds of `START`, bytes of
    `MEMORY`; `failures` say why a contender has none or no more."""

    workloads: Sequence[Workload]
    max_num_seqs: int
    figures: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def run_round(self, contenders: Sequence[Contender], round_index: int, say: Say) -> None:
        """One round. Who goes first changes from round to round."""
        turn = round_index % max(1, len(contenders))
        order = [each for each in [*contenders[turn:], *contenders[:turn]] if each.name not in self.failures]
        running: list[Running] = []
        try:
            for contender in order:
                self._start(contender, round_index, running, say)
            for workload in self.workloads:
                for each in [*running]:  # one that fails is taken out
                    self._measure(each, workload, round_index, running, say)
        finally:
            for each in running:
                each.close()

    def medians(self) -> dict[str, dict[str, float]]:
        return {
            key: {name: statistics.median(values) for name, values in row.items()} for key, row in self.figures.items()
        }

    def _start(self, contender: Contender, round_index: int, running: list[Running], say: Say) -> None:
        sizes = Sizes.of(self.workloads, self.max_num_seqs)
        try:
            each = Running(contender, sizes, prompts_of(f"start {round_index}"))
        except PeerFailed as failure:
            self._fail(contender, failure, say)
            return
        running.append(each)
        self.facts[contender.name] = each.facts
        self._note(START, contender, each.seconds_to_first_token)
        say(f"round {round_index + 1}: {contender.name}: first token after {each.seconds_to_first_token:.2f} s")

    def _measure(self, each: Running, workload: Workload, round_index: int, running: list[Running], say: Say) -> None:
        try:
            speed = each.measure(workload, prompts_of(f"{workload.key} {round_index}"))
            if workload is self.workloads[0]:
                self._note(MEMORY, each.contender, each.peak_rss_bytes())
        except PeerFailed as failure:
            self._fail(each.contender, failure, say)
            running.remove(each)
            each.close()
            return
        if speed is not None:
            self._note(workload.key, each.contender, speed)
        shown = "lost in noise" if speed is None else f"{speed:.1f} tok/s"
        say(f"round {round_index + 1}: {each.contender.name}: {workload.name}: {shown}")

    def _note(self, key: str, contender: Contender, value: float) -> None:
        self.figures.setdefault(key, {}).setdefault(contender.name, []).append(value)

    def _fail(self, contender: Contender, failure: PeerFailed, say: Say) -> None:
        self.failures[contender.name] = str(failure)
        say(f"{contender.name}: given up: {failure}")


#: What decides between the variants of a peer: one stream, a prompt, a batch; short.
TRIALS = (
    Workload("offline", "trial: 16 requests, 64 in + 24 out", "output", 16, 64, 24),
    Workload("decode", "trial: decode, 1 stream", "decode", 1, 16, 49),
    Workload("prefill", "trial: prefill 512", "prefill", 1, 512, 1),
)


def fastest_variants(
    contenders: Sequence[Contender], trials: Sequence[Workload], say: Say
) -> tuple[list[Contender], Comparison]:
    """Those contenders that are the fastest of their peer in one of `trials` at least, and the trials' figures."""
    trial = Comparison(trials, max_num_seqs=16)
    kept = []
    rivals_of = {each.peer.name: [rival.name for rival in contenders if rival.peer is each.peer] for each in contenders}
    for contender in contenders:
        if len(rivals_of[contender.peer.name]) > 1:
            trial.run_round([contender], 0, say)
    for contender in contenders:
        rivals = rivals_of[contender.peer.name]
        if len(rivals) == 1 or any(_wins(contender.name, rivals, trial.figures.get(each.key, {})) for each in trials):
            kept.append(contender)
    return kept, trial


def _wins(name: str, rivals: Sequence[str], row: dict[str, list[float]]) -> bool:
    speeds = {rival: row[rival][0] for rival in rivals if rival in row}
    return name in speeds and speeds[name] == max(speeds.values())
