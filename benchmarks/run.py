"""`make bench`: decode, prefill and offline throughput against transformers, one interleaved run.

Bounded: three rounds of three workloads, a few minutes on two cores. Prints a table and, with --json, one object.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.contenders import Contender, Octavo, Transformers


@dataclass(frozen=True)
class Workload:
    """`num_requests` prompts of `prompt_tokens` tokens, each continued by `new_tokens`."""

    name: str
    num_requests: int
    prompt_tokens: int
    new_tokens: int
    counts_prompt: bool = False

    def prompts(self, round_index: int) -> list[list[int]]:
        """Token ids that differ between requests and rounds, well inside any vocabulary."""
        return [
            [
                100 + (31 * position + 977 * request + 7919 * round_index) % 20_000
                for position in range(self.prompt_tokens)
            ]
            for request in range(self.num_requests)
        ]

    def tokens_per_second(self, seconds: float) -> float:
        per_request = self.prompt_tokens if self.counts_prompt else self.new_tokens
        return self.num_requests * per_request / seconds


WORKLOADS = (
    Workload("decode, 1 stream, context 16", 1, 16, 32),
    Workload("prefill 512 tokens", 1, 512, 1, counts_prompt=True),
    Workload("offline, 8 requests, 64 in + 32 out", 8, 64, 32),
)


def measure(contenders: Sequence[Contender], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Tokens per second by workload and contender; contenders take turns within each round."""
    figures: dict[str, dict[str, list[float]]] = {
        workload.name: {contender.name: [] for contender in contenders} for workload in WORKLOADS
    }
    for round_index in range(rounds):
        for workload in WORKLOADS:
            for contender in contenders:
                seconds = contender.seconds(workload.prompts(round_index), workload.new_tokens)
                figures[workload.name][contender.name].append(workload.tokens_per_second(seconds))
                print(f"round {round_index + 1}: {workload.name}: {contender.name}: {seconds:.2f} s", file=sys.stderr)
    return figures


def machine() -> dict[str, str]:
    """What the figures were seen on."""
    model = "unknown CPU"
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "octavo")}
    import torch

    return {"cpu": model, "threads": str(torch.get_num_threads()), "python": platform.python_version(), **versions}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--quantized", help="a quantized checkpoint of the same model to measure beside it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    contenders: list[Contender] = [Octavo("octavo float32", options.model), Transformers(options.model)]
    if options.quantized:
        contenders.append(Octavo("octavo " + Path(options.quantized).name, options.quantized))
    figures = measure(contenders, options.rounds)
    medians = {
        workload: {name: statistics.median(values) for name, values in row.items()} for workload, row in figures.items()
    }
    if options.json:
        print(json.dumps({"machine": machine(), "tokens_per_second": figures, "medians": medians}))
        return
    print("machine: " + ", ".join(f"{key} {value}" for key, value in machine().items()))
    for workload, row in medians.items():
        print(workload + ": " + ", ".join(f"{name} {value:.1f} tok/s" for name, value in row.items()))


if __name__ == "__main__":
    main()
