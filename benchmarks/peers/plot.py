"""Decode over the number of streams, a line a contender: `python -m benchmarks.peers plot RESULT.json`."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.peers.workload import STREAMS

FIGURE = Path(__file__).parents[2] / "docs" / "figures" / "streams.svg"


def draw(result_file: Path, target: Path) -> None:
    """From the object that `run --output` wrote. Raises `ValueError` where it holds no streams."""
    result = json.loads(result_file.read_text())
    medians = result["sessions"].get("streams", {}).get("medians", {})
    counts = {each.key: each.num_requests for each in STREAMS if each.key in medians}
    if not counts:
        raise ValueError(f"{result_file} holds no streams; measure with: python -m benchmarks.peers run --streams")
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.5, 4), layout="constrained")
    for name in sorted({name for key in counts for name in medians[key]}):
        places = [(count, medians[key][name]) for key, count in counts.items() if name in medians[key]]
        axes.plot(*zip(*places, strict=True), "o-", label=name, linewidth=2.5 if name.startswith("octavo") else 1.2)
    axes.set_xscale("log", base=2)
    axes.set(xlabel="streams at once, context 16", ylabel="decoded tokens/s, all streams", yscale="log")
    axes.set(xticks=list(counts.values()), xticklabels=[str(count) for count in counts.values()])
    axes.set_title(f"{result['machine']['cpu']}, {result['machine']['cores']} cores", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, metadata={"Date": None})
    pyplot.close(figure)
