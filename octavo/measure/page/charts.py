"""Charts as inline SVG. Colours and fonts are CSS classes of the page (`style.css`), so they follow light and dark.

Every mark carries a `<title>`, which browsers show as a tooltip and screen readers read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from octavo.measure.page.axis import Axis, Scale

_WIDTH = 760
#: Rough width of a character of a label, in pixels.
_CHARACTER = 6.4


@dataclass(frozen=True, slots=True)
class Point:
    """`tip` is its tooltip. Points on the front are drawn full and joined, others hollow."""

    x: float
    y: float
    label: str
    tip: str
    on_front: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """A small chart of lines: series name -> values by x (None: a gap)."""

    title: str
    series: Mapping[str, Sequence[float | None]]


def scatter(title: str, points: Sequence[Point], x: Axis, y: Axis, height: int = 380) -> str:
    """Points with labels; the front as a line through its points, by x."""
    left, right, top, bottom = 74, _WIDTH - 24, 16, height - 52
    across = Scale(x, [point.x for point in points], left, right)
    up = Scale(y, [point.y for point in points], bottom, top)
    body = _grid(across, up, left, right, top, bottom)
    front = sorted((point for point in points if point.on_front), key=lambda point: point.x)
    if len(front) > 1:
        corners = " ".join(f"{across.pixel(point.x):.1f},{up.pixel(point.y):.1f}" for point in front)
        body.append(f'<polyline class="front" points="{corners}"/>')
    places = {id(point): (across.pixel(point.x), up.pixel(point.y)) for point in points}
    taken = [(a - 7, b - 7, a + 7, b + 7) for a, b in places.values()]
    for point in sorted(points, key=lambda point: not point.on_front):
        body.append(_mark(point, *places[id(point)], right, taken))
    return _svg(title, body, _WIDTH, height)


def line_panels(title: str, panels: Sequence[Panel], x: Axis, y: Axis, columns: int = 3) -> str:
    """Panels that share both axes, so that they can be compared; series take the colours `series-0`, `series-1`."""
    width, height, gap = _WIDTH / columns, 168, 14
    values = [each for panel in panels for line in panel.series.values() for each in line if each is not None]
    longest = max((len(line) for panel in panels for line in panel.series.values()), default=1)
    body = []
    for place, panel in enumerate(panels):
        left, top = (place % columns) * width + 46, (place // columns) * height + 26
        right, bottom = (place % columns + 1) * width - gap, top + height - 58
        across = Scale(x, [0, longest - 1], left, right)
        up = Scale(y, values, bottom, top)
        body.append(f'<text class="panel-title" x="{left:.1f}" y="{top - 9:.1f}">{escape(panel.title)}</text>')
        body += _grid(across, up, left, right, top, bottom, labelled=False)
        for number, (name, line) in enumerate(panel.series.items()):
            body += _line(name, number, line, across, up, x, y)
    rows = -(-len(panels) // columns)
    return _svg(title, body, _WIDTH, round(rows * height + 8))


def stacked_bars(title: str, bars: Mapping[str, Mapping[str, float]], parts: Sequence[str], show: Axis) -> str:
    """A bar for each name, made of the same parts in the same order; all on one scale."""
    row, left, end = 46, 4, 110
    longest = max((sum(bar.values()) for bar in bars.values()), default=1) or 1
    body = []
    for place, (name, bar) in enumerate(bars.items()):
        x, y = float(left), place * row + 18
        body.append(f'<text class="bar-name" x="{left}" y="{y - 5}">{escape(name)}</text>')
        for number, part in enumerate(parts):
            if part not in bar:
                continue
            width = bar[part] / longest * (_WIDTH - left - end)
            tip = f"{name}: {part} {show.show(bar[part])}"
            body.append(
                f'<rect class="part part-{number}" x="{x:.1f}" y="{y}" width="{width:.2f}" height="16">'
                f"<title>{escape(tip)}</title></rect>"
            )
            x += width
        body.append(f'<text class="bar-value" x="{x + 6:.1f}" y="{y + 12}">{show.show(sum(bar.values()))}</text>')
    return _svg(title, body, _WIDTH, len(bars) * row)


def bars(title: str, values: Mapping[str, float], axis: Axis) -> str:
    """A plain bar for each name, from zero."""
    return stacked_bars(title, {name: {"": value} for name, value in values.items()}, [""], axis)


def legend(names: Sequence[str], kind: str) -> str:
    """Swatches with names; `kind` is `part` or `series`, as in the chart's classes."""
    items = "".join(
        f'<li><span class="swatch {kind}-{number}" aria-hidden="true"></span>{escape(name)}</li>'
        for number, name in enumerate(names)
    )
    return f'<ul class="legend">{items}</ul>'


def _svg(title: str, body: Sequence[str], width: int, height: int) -> str:
    inner = "\n".join(body)
    return (
        f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title, quote=True)}">\n'
        f"{inner}\n</svg>"
    )


def _grid(
    across: Scale, up: Scale, left: float, right: float, top: float, bottom: float, labelled: bool = True
) -> list[str]:
    """Lines at the ticks with their values, and the axes' names."""
    wanted = (6, 5) if labelled else (4, 3)
    lines = []
    for tick in across.ticks(wanted[0]):
        x, text = across.pixel(tick), escape(across.axis.show(tick))
        lines.append(f'<line class="grid" x1="{x:.1f}" y1="{top:.1f}" x2="{x:.1f}" y2="{bottom:.1f}"/>')
        lines.append(f'<text class="tick" text-anchor="middle" x="{x:.1f}" y="{bottom + 16:.1f}">{text}</text>')
    for tick in up.ticks(wanted[1]):
        y, text = up.pixel(tick), escape(up.axis.show(tick))
        lines.append(f'<line class="grid" x1="{left:.1f}" y1="{y:.1f}" x2="{right:.1f}" y2="{y:.1f}"/>')
        lines.append(f'<text class="tick" text-anchor="end" x="{left - 7:.1f}" y="{y + 4:.1f}">{text}</text>')
    if labelled:
        middle, centre = (left + right) / 2, (top + bottom) / 2
        lines.append(
            f'<text class="axis" text-anchor="middle" x="{middle:.1f}" y="{bottom + 40:.1f}">'
            f"{escape(across.axis.label)}</text>"
        )
        lines.append(
            f'<text class="axis" text-anchor="middle" transform="translate(16 {centre:.1f}) rotate(-90)">'
            f"{escape(up.axis.label)}</text>"
        )
    return lines


def _mark(point: Point, x: float, y: float, right: float, taken: list[tuple[float, float, float, float]]) -> str:
    """A dot and its label, beside it where no other label stands."""
    width = _CHARACTER * len(point.label)
    lines = (y + 4, y - 9, y + 17, y - 22, y + 30)
    candidates = [(start, line) for line in lines for start in (x + 10, x - 10 - width)]
    inside = [(a, b) for a, b in candidates if a >= 0 and a + width <= right + 20] or candidates[:1]
    free = [place for place in inside if not any(_overlap(place, width, other) for other in taken)]
    label_x, label_y = (free or inside)[0]
    taken.append((label_x, label_y - 11, label_x + width, label_y + 2))
    anchor = f'x="{x + 10:.1f}"' if label_x > x else f'text-anchor="end" x="{x - 10:.1f}"'
    kind = "dot best" if point.on_front else "dot"
    return (
        f'<g><title>{escape(point.tip)}</title><circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="6"/>'
        f'<text class="point" {anchor} y="{label_y:.1f}">{escape(point.label)}</text></g>'
    )


def _overlap(place: tuple[float, float], width: float, other: tuple[float, float, float, float]) -> bool:
    left, top, right, bottom = place[0], place[1] - 11, place[0] + width, place[1] + 2
    return left < other[2] and other[0] < right and top < other[3] and other[1] < bottom


def _line(
    name: str, number: int, values: Sequence[float | None], across: Scale, up: Scale, x: Axis, y: Axis
) -> list[str]:
    places = [(across.pixel(i), up.pixel(value), i, value) for i, value in enumerate(values) if value is not None]
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b, _, _ in places)
    drawn = [f'<polyline class="line series-{number}" points="{points}"/>']
    for a, b, i, value in places:
        tip = escape(f"{name}, {x.label} {i}: {y.show(value)}")
        drawn.append(
            f'<circle class="knot series-{number}" cx="{a:.1f}" cy="{b:.1f}" r="2.4"><title>{tip}</title></circle>'
        )
    return drawn
