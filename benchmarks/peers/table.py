"""The ratio table for people: medians, "octavo / best peer", floors."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.peers.comparison import MEMORY, START, Comparison
from benchmarks.peers.machine import BANDWIDTH_MEBIBYTES

OURS = "octavo"
#: Wanted of the figures that are no ratio.
START_FLOOR, START_AIM = 3.0, 1.5
MEMORY_FLOOR, MEMORY_AIM = 700e6, 450e6


@dataclass(frozen=True)
class Row:
    """`best_peer` and `ratio` are None where nobody else was measured."""

    key: str
    name: str
    values: Mapping[str, float]
    best_peer: str | None
    ratio: float | None
    floor: float | None
    aim: float | None

    @property
    def verdict(self) -> str:
        if self.ratio is None or self.floor is None:
            return ""
        return (
            "aim"
            if self.aim is not None and self.ratio >= self.aim
            else "floor"
            if self.ratio >= self.floor
            else "BELOW"
        )


def rows(comparison: Comparison) -> list[Row]:
    """One row a workload, in order."""
    medians = comparison.medians()
    return [
        Row(each.key, each.name, values, *_ratio(values), each.floor, each.aim)
        for each in comparison.workloads
        if (values := medians.get(each.key))
    ]


def is_ours(contender: str) -> bool:
    return contender.split()[0] == OURS


def _ratio(values: Mapping[str, float]) -> tuple[str | None, float | None]:
    ours = [value for name, value in values.items() if is_ours(name)]
    peers = {name: value for name, value in values.items() if not is_ours(name)}
    if not ours or not peers:
        return None, None
    best = max(peers, key=lambda name: peers[name])
    return best, max(ours) / peers[best]


def bandwidth_share(comparison: Comparison, bandwidth: Sequence[Mapping[int, float]]) -> float | None:
    """Weight bytes that our 1-stream decode reads a second, over the read bandwidth of the same run."""
    decode = comparison.medians().get("decode_16", {})
    ours = next((name for name in decode if is_ours(name)), None)
    if ours is None or not bandwidth:
        return None
    readable = statistics.median(each[BANDWIDTH_MEBIBYTES[0]] for each in bandwidth)
    return decode[ours] * comparison.facts[ours]["weight_bytes"] / readable


def print_table(comparison: Comparison, title: str) -> None:
    """Contenders in columns that fit any width: one block a workload."""
    print(f"\n{title}")
    for row in rows(comparison):
        print(f"  {row.name}")
        for name, value in sorted(row.values.items(), key=lambda item: -item[1]):
            print(f"    {value:10.1f} tok/s  {name}")
        if row.ratio is not None:
            wanted = f"; floor {row.floor:g}x, aim {row.aim:g}x: {row.verdict}" if row.floor else ""
            print(f"    {row.ratio:10.2f} x      octavo / best peer ({row.best_peer}){wanted}")
    medians = comparison.medians()
    _print_plain(
        medians.get(START, {}),
        "process start to first token",
        lambda value: f"{value:10.2f} s    ",
        START_FLOOR,
        START_AIM,
    )
    _print_plain(
        medians.get(MEMORY, {}),
        f"peak RSS through {comparison.workloads[0].name}",
        lambda value: f"{value / 1e6:10.0f} MB   ",
        MEMORY_FLOOR,
        MEMORY_AIM,
    )
    for name, reason in comparison.failures.items():
        print(f"  not measured: {name}: {reason}")


def _print_plain(values: Mapping[str, float], name: str, shown: Any, floor: float, aim: float) -> None:
    if not values:
        return
    print(f"  {name}")
    for contender, value in sorted(values.items(), key=lambda item: item[1]):
        verdict = ""
        if is_ours(contender):
            verdict = "  (" + ("aim" if value < aim else "floor" if value < floor else "ABOVE the floor") + ")"
        print(f"    {shown(value)}  {contender}{verdict}")
