"""The plots of a comparison: what a checkpoint costs against what it loses. Each has its table."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from octavo.core.units import format_bytes
from octavo.measure.compare.comparison import Comparison
from octavo.measure.compare.entry import CheckpointEntry
from octavo.measure.page import html
from octavo.measure.page.axis import Axis
from octavo.measure.page.charts import Point, bars, scatter

_BITS = Axis("bits per weight, everything counted", show=lambda value: f"{value:.4g}")
_MEGABYTES = Axis("size of the weight files, MB", show=lambda value: f"{value:,.4g}")
_TOKENS = Axis("tokens per second, one request", show=lambda value: f"{value:,.4g}")
_PERPLEXITY = Axis("perplexity", is_log=True, show=lambda value: f"{value:.4g}")
_DIVERGENCE = Axis("KL divergence, nats/token", is_log=True, show=lambda value: f"{value:.3g}")


def size_plot(comparison: Comparison) -> str:
    """Nothing where fewer than two checkpoints can be shown; so are all of these."""
    caption = "Lower is better, further left is smaller. Full dots: no other checkpoint is better in both."
    points = _points(comparison, lambda entry: entry.weight_bytes / 1e6, comparison.by_size())
    return _plot("Size against quality", caption, points, _MEGABYTES, _loss_axis(comparison))


def speed_plot(comparison: Comparison) -> str:
    caption = "Lower is better, further right is faster. Full dots: no other checkpoint is better in both."

    def tokens_per_second(entry: CheckpointEntry) -> float | None:
        return None if entry.speed is None else entry.speed.decode_tokens_per_second

    points = _points(comparison, tokens_per_second, comparison.by_speed())
    return _plot("Speed against quality", caption, points, _TOKENS, _loss_axis(comparison))


def bits_plots(comparison: Comparison, focus: CheckpointEntry) -> str:
    """Bits against perplexity, with the source that `focus` was measured against, and against KL: `focus` as a full
    dot, the others hollow."""
    points = _points(comparison, lambda entry: entry.bits_per_weight, [focus], lambda entry: entry.perplexity)
    base = (focus.quality or {}).get("comparison")
    if base:
        bits, value = float(base["base_bits_per_weight"]), float(base["base_perplexity"])
        points.append(Point(bits, value, "source", f"{base['base']}: {bits:.3g} bits, {value:.4g}"))
    caption = "Lower is better, further left is smaller; only figures of the same protocol stand here."
    others = _points(comparison, lambda entry: entry.bits_per_weight, [focus], lambda entry: entry.divergence)
    return _plot("Bits against perplexity", caption, points, _BITS, _PERPLEXITY) + _plot(
        "Bits against KL divergence", caption, others, _BITS, _DIVERGENCE
    )


def speed_bars(entries: Sequence[CheckpointEntry]) -> str:
    """Time to first token and memory, where speed was measured."""
    timed = [(entry.name, entry.speed) for entry in entries if entry.speed is not None]
    if not timed:
        return ""
    ttft = {name: 1e3 * speed.ttft_seconds for name, speed in timed}
    memory = {name: float(speed.peak_rss_bytes) for name, speed in timed}
    shown = (
        ("Time to first token", ttft, Axis("time", show=lambda value: f"{value:,.3g} ms")),
        ("Peak memory of a process that serves it", memory, Axis("memory", show=format_bytes)),
    )
    parts = [
        html.figure(
            bars(title, values, axis),
            f"{title}. Shorter is better.",
            html.table(("checkpoint", axis.label), [(name, axis.show(value)) for name, value in values.items()]),
        )
        for title, values, axis in shown
    ]
    return html.section("First token and memory", *parts)


def _points(
    comparison: Comparison,
    cost: Callable[[CheckpointEntry], float | None],
    front: Sequence[CheckpointEntry],
    loss: Callable[[CheckpointEntry], float | None] | None = None,
) -> list[Point]:
    """Of the entries that have both figures by one protocol. `loss` None: the comparison's own."""
    loss = loss or comparison.loss
    found = [(entry, cost(entry), loss(entry)) for entry in comparison.comparable()]
    return [
        Point(x, y, entry.name, f"{entry.name}: {x:,.4g}, {y:.4g}", any(entry is each for each in front))
        for entry, x, y in found
        if x is not None and y is not None
    ]


def _plot(title: str, caption: str, points: Sequence[Point], x: Axis, y: Axis) -> str:
    if len(points) < 2:
        return ""
    rows = [(point.label, x.show(point.x), y.show(point.y), "yes" if point.on_front else "-") for point in points]
    data = html.table(("checkpoint", x.label, y.label, "full dot"), rows)
    return html.section(title, html.figure(scatter(title, points, x, y), caption, data))


def _loss_axis(comparison: Comparison) -> Axis:
    return _DIVERGENCE if comparison.loss_name == "KL" else _PERPLEXITY
