"""How speed and memory grow: contexts of 256 to 8,192 tokens, 1 to 256 sequences. `python -m benchmarks.growth`.

Each axis runs in a process of its own, so that one engine's memory is not another's. Figures go to `docs/figures/`
(matplotlib, the extra `bench`), numbers to stdout. Bounded: one decode of `--new-tokens` tokens a point.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

CONTEXTS = (256, 512, 1024, 2048, 4096, 8192)
SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
#: Prompt of each sequence on the axis of sequences.
SHORT_CONTEXT = 64
FIGURES = Path(__file__).parents[1] / "docs" / "figures"


@dataclass(frozen=True)
class Point:
    """`context` is the length each sequence has at its end. `kv_used_bytes` is the most that running sequences held,
    `rss_bytes` what the process held afterwards."""

    context: int
    num_sequences: int
    prefill_tokens_per_second: float
    decode_tokens_per_second: float
    seconds_per_step: float
    kv_used_bytes: int
    rss_bytes: int


def measure(axis: str, options: argparse.Namespace) -> Iterator[Point]:
    """The points of one axis, by one engine."""
    import octavo

    shapes = list(_shapes(axis, options))
    llm = octavo.LLM(
        options.model,
        memory=options.memory,
        dtype=options.dtype,
        max_num_seqs=max(count for _, count in shapes),
        max_model_len=max(context for context, _ in shapes),
    )
    for context, count in shapes:
        yield _point(llm, context, count, options.new_tokens)


def _shapes(axis: str, options: argparse.Namespace) -> Iterator[tuple[int, int]]:
    """(context, sequences), growing."""
    if axis == "context":
        yield from ((context, 1) for context in options.contexts)
    else:
        yield from ((SHORT_CONTEXT + options.new_tokens, count) for count in options.sequences)


def _point(llm: Any, context: int, count: int, new_tokens: int) -> Point:
    """Prompts fill the context but for the new tokens; the first token ends the prefill."""
    from octavo.measure.bench.offline import prompt_source, run_batch

    prompt_len = context - new_tokens
    source = prompt_source(llm, context * 1000 + count)
    used_blocks = _watch_blocks(llm)
    batch = run_batch(llm, source.distinct(count, prompt_len), new_tokens)
    llm.engine.listeners.pop()
    prefill_seconds = max(batch.ttft_seconds)
    decode_seconds = max(batch.seconds - prefill_seconds, 1e-9)
    return Point(
        context,
        count,
        count * prompt_len / prefill_seconds,
        count * (new_tokens - 1) / decode_seconds,
        decode_seconds / (new_tokens - 1),
        max(used_blocks) * llm.memory_plan.block_bytes,
        _rss_bytes(),
    )


def _watch_blocks(llm: Any) -> list[int]:
    """Blocks held after each step, noted while the engine runs."""
    used = [0]
    llm.engine.listeners.append(lambda deltas: used.append(llm.engine.cache.num_used_blocks))
    return used


def _rss_bytes() -> int:
    import psutil

    return int(psutil.Process().memory_info().rss)


def in_own_process(axis: str, options: argparse.Namespace) -> list[Point]:
    command = [sys.executable, "-m", "benchmarks.growth", *sys.argv[1:], "--axis", axis]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=options.limit_seconds)
    return [Point(**json.loads(line)) for line in done.stdout.splitlines()]


def draw(axis: str, points: Sequence[Point], title: str, target: Path) -> None:
    """Speed on the left, memory on the right, both over the axis, logarithmic."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    places = [point.context if axis == "context" else point.num_sequences for point in points]
    figure, (speed, memory) = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    speed.plot(places, [point.prefill_tokens_per_second for point in points], "o-", label="prefill")
    speed.plot(places, [point.decode_tokens_per_second for point in points], "s-", label="decode")
    speed.set(ylabel="tokens/s", yscale="log")
    memory.plot(places, [point.rss_bytes / 2**20 for point in points], "o-", label="process (RSS)")
    memory.plot(places, [point.kv_used_bytes / 2**20 for point in points], "s-", label="KV blocks in use")
    memory.set(ylabel="MiB", yscale="log")
    for axes in (speed, memory):
        axes.set_xscale("log", base=2)
        axes.set(xlabel="context, tokens" if axis == "context" else "sequences at once", xticks=places)
        axes.set_xticklabels([f"{place:,}" for place in places])
        axes.grid(alpha=0.3)
        axes.legend()
    figure.suptitle(title, fontsize=10)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, metadata={"Date": None})
    pyplot.close(figure)


def numbers(text: str) -> list[int]:
    """`"1,2,4"` -> ascending whole numbers."""
    return sorted(int(each) for each in text.split(","))


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--contexts", type=numbers, default=list(CONTEXTS), help="with commas")
    parser.add_argument("--sequences", type=numbers, default=list(SEQUENCES), help="with commas")
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--memory", help="as in octavo serve")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--limit-seconds", type=float, default=1800.0, help="for each axis")
    parser.add_argument("--figures", type=Path, default=FIGURES, help="folder to draw into (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--axis", choices=("context", "sequences"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.new_tokens < 2 or options.new_tokens >= options.contexts[0]:
        parser.error(f"--new-tokens {options.new_tokens}: must be at least 2 and below the shortest context")
    return options


def main() -> None:
    options = parse()
    if options.axis:
        for point in measure(options.axis, options):
            print(json.dumps(asdict(point)), flush=True)
        return
    found = {}
    for axis in ("context", "sequences"):
        points = found[axis] = in_own_process(axis, options)
        title = f"{options.model}: growth with {'the context' if axis == 'context' else 'the number of sequences'}"
        draw(axis, points, title, options.figures / f"growth-{axis}.svg")
    if options.json:
        print(json.dumps({axis: [asdict(point) for point in points] for axis, points in found.items()}))
        return
    for points in found.values():
        for each in points:
            print(
                f"context {each.context:6}, {each.num_sequences:4} sequences: prefill "
                f"{each.prefill_tokens_per_second:8.0f} tok/s, decode {each.decode_tokens_per_second:8.1f} tok/s, "
                f"step {1000 * each.seconds_per_step:7.2f} ms, KV {each.kv_used_bytes / 2**20:7.1f} MiB, "
                f"RSS {each.rss_bytes / 2**20:7.1f} MiB"
            )


if __name__ == "__main__":
    main()
