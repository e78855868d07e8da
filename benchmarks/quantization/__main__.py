"""`python -m benchmarks.quantization setup|run|measure|table`. Every row is kept: what is there is not run again."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.environment import SetupFailed
from benchmarks.peers.llama_cpp import LLAMA_CPP
from benchmarks.peers.models import Models
from benchmarks.quantization.environments import ENVIRONMENTS
from benchmarks.quantization.job import Task, run_row
from benchmarks.quantization.rows import ROWS

DATA = Path("/work/shared/data/text")


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    if options.action == "setup":
        _set_up(options.rows)
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    length = options.sequence_length
    task = Task(options.source, options.calibration, options.samples, length, options.folder.absolute())
    if options.action == "run":
        _run(task, options.rows)
    elif options.action == "measure":
        _measure(task, options.rows, options.text, options.windows)
    print(_table(task, options.rows))


def _set_up(rows: Sequence[str]) -> None:
    """The environments that the rows need, and the source in the forms that they read."""
    needed = {ROWS[name].tool for name in rows}
    for name, environment in ENVIRONMENTS.items():
        if name in needed:
            try:
                environment.set_up(print, num_jobs=2)
            except SetupFailed as reason:
                print(f"{name}: set-up failed: {reason}")
    Models().write_sources(LLAMA_CPP.environment, print)


def _run(task: Task, rows: Sequence[str]) -> None:
    for name in rows:
        row = ROWS[name]
        if task.result_file(row).exists():
            continue
        try:
            result = run_row(row, task)
            print(f"{name}: {result['seconds']:.0f} s, {result['cpu_seconds']:.0f} CPU s", flush=True)
        except RuntimeError as error:
            print(error, flush=True)


def _measure(task: Task, rows: Sequence[str], text: Path, num_windows: int) -> None:
    from benchmarks.quantization.quality import Base, measure

    base = Base(task.source, text, num_windows, task.folder)
    for name in rows:
        file = task.result_file(ROWS[name])
        if not task.output(ROWS[name]).exists():
            continue
        result = json.loads(file.read_text()) if file.exists() else {}
        if result.get("protocol") == base.protocol.to_dict():
            continue
        result |= {"quality": measure(task.output(ROWS[name]), base), "protocol": base.protocol.to_dict()}
        file.write_text(json.dumps(result, indent=1))
        print(name, json.dumps(result["quality"]), flush=True)


def _table(task: Task, rows: Sequence[str]) -> str:
    lines = [
        "| method | bits per linear weight | perplexity | KL, nats | top-1 | bytes | seconds (CPU s) | peak RSS, MB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in rows:
        file = task.result_file(ROWS[name])
        if file.exists():
            lines.append(_line(ROWS[name].title, json.loads(file.read_text())))
    return "\n".join(lines)


def _line(title: str, result: dict[str, Any]) -> str:
    quality = result.get("quality")
    measured = " | | | |"
    if quality:
        measured = (
            f" {quality['linear_bits']:.2f} | {quality['perplexity']:.2f} | {quality['kl']:.3f} | "
            f"{100 * quality['top1']:.1f} % | {quality['bytes']:,} |"
        )
    if "seconds" not in result:
        return f"| {title} |{measured} | |"
    seconds = f"{result['seconds']:.0f} ({result['cpu_seconds']:.0f})"
    return f"| {title} |{measured} {seconds} | {result['peak_bytes'] / 1e6:,.0f} |"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quantization", description=__doc__)
    parser.add_argument("action", choices=("setup", "run", "measure", "table"))
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--source", type=Path, default=Models().hugging_face, help="a float32 directory")
    parser.add_argument("--calibration", type=Path, default=DATA / "c4-sample.txt")
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--sequence-length", type=int, default=512)
    parser.add_argument("--text", type=Path, default=DATA / "wikitext2-raw" / "wiki.test.raw")
    parser.add_argument("--windows", type=int, default=12)
    parser.add_argument("--folder", type=Path, default=Path("build/quantization"))
    return parser


if __name__ == "__main__":
    main()
