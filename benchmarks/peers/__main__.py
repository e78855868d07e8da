"""`python -m benchmarks.peers setup | list | run | plot`. Bounded: rounds, workloads, and a time limit for each."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.peers.comparison import TRIALS, Comparison, fastest_variants
from benchmarks.peers.contender import Contender
from benchmarks.peers.environment import SetupFailed
from benchmarks.peers.llama_cpp import LLAMA_CPP
from benchmarks.peers.machine import ReadBandwidth, describe
from benchmarks.peers.models import Models
from benchmarks.peers.octavo import octavo_peer
from benchmarks.peers.openvino import OPENVINO
from benchmarks.peers.peer import Peer
from benchmarks.peers.plot import FIGURE, draw
from benchmarks.peers.table import bandwidth_share, print_table, rows
from benchmarks.peers.transformers import TRANSFORMERS
from benchmarks.peers.vllm import VLLM
from benchmarks.peers.workload import STREAMS, TABLE, Workload

EXIT_TERMINATED = 143
OTHERS = (LLAMA_CPP, OPENVINO, VLLM, TRANSFORMERS)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def set_up(names: Sequence[str], models: Models, num_jobs: int) -> int:
    """0 when everything that was asked for is there."""
    failures = 0
    for peer in OTHERS:
        if not names or peer.environment.name in names:
            try:
                peer.environment.set_up(say, num_jobs)
            except SetupFailed as reason:
                failures += 1
                say(f"{peer.environment.name}: set-up failed: {reason}")
    models.set_up(LLAMA_CPP.environment, say)
    return min(failures, 1)


def present(models: Models, ours: Peer, names: Sequence[str]) -> tuple[list[Contender], dict[str, str]]:
    """Who can be measured, and why the others cannot. `names`: of environments; none: all."""
    contenders, absent = [], {}
    for peer in (ours, *OTHERS):
        if names and peer is not ours and peer.environment.name not in names:
            continue
        reason = peer.environment.why_missing()
        if reason is not None:
            absent[peer.name] = reason
            continue
        for variant in peer.variants(models):
            contender = Contender(peer, variant)
            reason = variant.why_missing()
            if reason is None:
                contenders.append(contender)
            else:
                absent[contender.name] = reason
    return contenders, absent


def run(options: argparse.Namespace, models: Models) -> dict[str, Any]:
    """All rounds; the result as one object, the tables printed unless it is for machines."""
    contenders, absent = present(models, octavo_peer(options.octavo), options.peers)
    for name, reason in absent.items():
        say(f"not here: {name}: {reason}")
    trials = [each.scaled(options.scale) for each in TRIALS]
    result: dict[str, Any] = {"machine": describe(), "absent": absent, "rounds": options.rounds, "sessions": {}}
    if not options.all_variants:
        contenders, trial = fastest_variants(contenders, trials, say)
        result["trials"] = trial.figures
        absent |= trial.failures
    bandwidth = ReadBandwidth()
    result["read_bandwidth_bytes_per_second"] = []
    for title, max_num_seqs, workloads in _sessions(options):
        comparison = Comparison([each.scaled(options.scale) for each in workloads], max_num_seqs)
        for round_index in range(options.rounds):
            result["read_bandwidth_bytes_per_second"].append(bandwidth.measure())
            comparison.run_round(contenders, round_index, say)
        result["sessions"][title] = _as_json(comparison)
        result["sessions"][title]["bandwidth_share"] = share = bandwidth_share(
            comparison, result["read_bandwidth_bytes_per_second"]
        )
        if not options.json:
            print_table(comparison, title)
            if share is not None:
                print(f"  octavo's 1-stream decode reads weights at {share:.0%} of the measured bandwidth (floor 70 %)")
    result["notes"] = {each.peer.name: each.peer.notes for each in contenders if each.peer.notes}
    return result


def _sessions(options: argparse.Namespace) -> list[tuple[str, int, Sequence[Workload]]]:
    """(title, sequences at once, workloads)."""
    known = {each.key: each for each in (*TABLE, *STREAMS)}
    if options.workloads:
        return [("chosen workloads", 64, [known[key] for key in options.workloads])]
    table = ("the table", 16, TABLE)
    return [table, ("streams", 64, STREAMS)] if options.streams else [table]


def _as_json(comparison: Comparison) -> dict[str, Any]:
    return {
        "workloads": {each.key: asdict(each) for each in comparison.workloads},
        "figures": comparison.figures,
        "medians": comparison.medians(),
        "ratios": {each.key: {"best_peer": each.best_peer, "ratio": each.ratio} for each in rows(comparison)},
        "facts": comparison.facts,
        "failures": comparison.failures,
    }


def print_surroundings(result: Mapping[str, Any]) -> None:
    """Machine, bandwidth, versions, builds, and who was not there."""
    print("\nmachine: " + ", ".join(f"{key} {value}" for key, value in result["machine"].items()))
    for mebibytes in next(iter(result["read_bandwidth_bytes_per_second"]), {}):
        seen = sorted(each[mebibytes] for each in result["read_bandwidth_bytes_per_second"])
        print(f"read bandwidth, {mebibytes} MiB: {seen[0] / 1e9:.1f} .. {seen[-1] / 1e9:.1f} GB/s")
    for session in result["sessions"].values():
        for name, facts in session["facts"].items():
            print(f"{name}: " + ", ".join(f"{key} {value}" for key, value in facts.items()))
    for name, note in result["notes"].items():
        print(f"{name}: {note}")
    for name, reason in result["absent"].items():
        print(f"not here: {name}: {reason}")


def setting(text: str) -> tuple[str, Any]:
    """`memory=1GiB` -> ("memory", "1GiB"); a value that is JSON is read as such."""
    name, separator, value = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text!r}: write NAME=VALUE, such as memory=1GiB")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def parser() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--model", default="smollm2-135m", help="what all forms are made from (default: %(default)s)")
    shared.add_argument("--octavo-model", type=Path, help="our quantized checkpoint of it (default: made by setup)")
    main = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    commands = main.add_subparsers(dest="command", required=True)
    environments = [peer.environment.name for peer in OTHERS]
    setup = commands.add_parser("setup", parents=[shared], help="make environments and models")
    setup.add_argument("names", nargs="*", help=f"of {', '.join(environments)} (default: all)")
    setup.add_argument("--jobs", type=int, default=1, help="processes that compile (default: %(default)s)")
    commands.add_parser("list", parents=[shared], help="say who is there")
    run = commands.add_parser("run", parents=[shared], help="measure who is there")
    run.add_argument("--peers", nargs="*", default=[], choices=environments, help="only these beside octavo")
    run.add_argument("--rounds", type=int, default=3)
    run.add_argument("--streams", action="store_true", help="also decode with 1, 4, 16 and 64 streams")
    keys = [each.key for each in (*TABLE, *STREAMS)]
    run.add_argument("--workloads", nargs="*", choices=keys, help="only these")
    run.add_argument("--all-variants", action="store_true", help="measure every variant, not the fastest of each peer")
    run.add_argument("--octavo", type=setting, action="append", default=[], metavar="NAME=VALUE", help="for octavo.LLM")
    run.add_argument("--scale", type=float, default=1.0, help="fewer requests and new tokens, for trying out")
    run.add_argument("--json", action="store_true", help="one JSON object on stdout")
    run.add_argument("--output", type=Path, help="also write the JSON object to this file")
    plot = commands.add_parser("plot", help="draw decode over streams from a result with --streams")
    plot.add_argument("result", type=Path, help="what run --output wrote")
    plot.add_argument("--figure", type=Path, default=FIGURE, help="(default: %(default)s)")
    return main


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if options.command == "plot":
        draw(options.result, options.figure)
        return 0
    models = Models(options.model, options.octavo_model)
    if options.command == "setup":
        return set_up(options.names, models, options.jobs)
    if options.command == "list":
        contenders, absent = present(models, octavo_peer({}), [])
        for contender in contenders:
            print(f"here: {contender.name}")
        for name, reason in absent.items():
            print(f"not here: {name}: {reason}")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))  # leave by the `finally`s that end the workers
    options.octavo = dict(options.octavo)
    result = run(options, models)
    if options.output is not None:
        options.output.write_text(json.dumps(result, indent=1))
    if options.json:
        print(json.dumps(result))
    else:
        print_surroundings(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
