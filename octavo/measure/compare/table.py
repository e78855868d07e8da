"""A comparison for people at a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from octavo.core.units import format_bytes
from octavo.measure.compare.comparison import Comparison
from octavo.measure.compare.entry import MEASURED, CheckpointEntry

HEAD = ("checkpoint", "stored as", "bytes", "bits/weight", "perplexity", "KL", "top-1", "TTFT", "tokens/s", "peak RSS")


def comparison_lines(comparison: Comparison) -> Iterator[str]:
    """The table, then what marks, figures and missing figures mean."""
    yield from aligned([(*HEAD, "Pareto"), *((*figures(each), marks(comparison, each)) for each in comparison.entries)])
    yield f"Pareto: no other checkpoint is better in both {comparison.loss_name} and bytes (size), or tokens/s (speed)"
    if comparison.against is not None:
        yield f"KL and top-1 against {comparison.against}"
    yield from protocol_lines(comparison.entries)
    yield from (f"note: {note}" for note in (*comparison.notes, *comparison.not_comparable()))
    for entry in comparison.entries:
        yield from (f"note: {entry.name}: {problem}" for problem in entry.problems)


def figures(entry: CheckpointEntry) -> tuple[str, ...]:
    """The cells of `HEAD`; "-" where something was not measured."""
    speed = entry.speed
    return (
        entry.name,
        entry.stored_as,
        f"{entry.weight_bytes:,}",
        f"{entry.bits_per_weight:.2f}",
        shown(entry.perplexity, "{:.3f}"),
        shown(entry.divergence, "{:.4f}"),
        shown(entry.top1_agreement, "{:.1%}"),
        "-" if speed is None else f"{1e3 * speed.ttft_seconds:.0f} ms",
        "-" if speed is None else f"{speed.decode_tokens_per_second:.1f}",
        "-" if speed is None else format_bytes(speed.peak_rss_bytes),
    )


def marks(comparison: Comparison, entry: CheckpointEntry) -> str:
    """Which fronts the entry is on."""
    fronts = (("size", comparison.by_size()), ("speed", comparison.by_speed()))
    return ", ".join(name for name, front in fronts if any(entry is each for each in front)) or "-"


def protocol_lines(entries: Sequence[CheckpointEntry]) -> Iterator[str]:
    """How figures were measured, each way once, with every caveat."""
    measured = [entry for entry in entries if entry.quality is not None]
    for origin in dict.fromkeys(entry.quality_origin for entry in measured):
        names = ", ".join(entry.name for entry in measured if entry.quality_origin == origin)
        yield f"quality {'measured now' if origin == MEASURED else f'from {origin}'}: {names}"
    yield from dict.fromkeys(f"protocol: {protocol_text(entry)}" for entry in measured)
    yield from dict.fromkeys(f"speed: {entry.speed.protocol}" for entry in entries if entry.speed is not None)
    yield from dict.fromkeys(f"note: {caveat}" for entry in measured for caveat in (entry.quality or {})["caveats"])


def protocol_text(entry: CheckpointEntry) -> str:
    """The protocol of an entry's quality, in words."""
    from octavo.measure.windows import Protocol

    assert entry.quality is not None
    return str(Protocol(**entry.quality["protocol"]))


def shown(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest cell; all but the first two to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if place < 2 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
