"""The page of a comparison: of several checkpoints, or the report of a single one."""

from __future__ import annotations

from pathlib import Path

import octavo
from octavo.core.errors import InvalidField
from octavo.core.storage import replacing
from octavo.measure.compare.comparison import Comparison
from octavo.measure.compare.entry import CheckpointEntry
from octavo.measure.compare.table import HEAD, figures, marks, protocol_lines
from octavo.measure.page import html
from octavo.measure.page.checkpoint_sections import checkpoint_sections
from octavo.measure.page.plots import bits_plots, size_plot, speed_bars, speed_plot


def check_page_file(file: Path) -> None:
    """Raises `InvalidField` for a place where no page can be written, before any work."""
    if file.is_dir() or file.suffix.lower() not in (".html", ".htm"):
        raise InvalidField("html", str(file), "name a file that ends in .html")
    if not file.absolute().parent.is_dir():
        raise InvalidField("html", str(file), f"the directory {file.absolute().parent} does not exist")


def write_page(file: Path, comparison: Comparison, focus: CheckpointEntry | None = None) -> Path:
    """Write `render_page`, whole or not at all."""
    with replacing(file) as partial:
        partial.write_text(render_page(comparison, focus), encoding="utf-8")
    return file


def render_page(comparison: Comparison, focus: CheckpointEntry | None = None) -> str:
    """Self-contained HTML: the report of `focus` (None: of the only entry), the others as points beside it; of several
    without a focus a table, plots, and each one's report folded."""
    entries = comparison.entries
    focus = entries[0] if len(entries) == 1 else focus
    title = focus.name if focus else f"{len(entries)} checkpoints compared"
    lead = focus.stored_as if focus else ", ".join(entry.name for entry in entries)
    head = f"<h1>{html.escape(title)}</h1>{html.paragraph(lead, 'lead')}"
    if focus:
        beside = [html.paragraph(line, "quiet") for line in comparison.not_comparable() if len(entries) > 1]
        body = checkpoint_sections(focus, "\n".join([bits_plots(comparison, focus), *beside]))
    else:
        reports = [html.folded(f"Report of {entry.name}", checkpoint_sections(entry, "")) for entry in entries]
        body = "\n".join([*_comparison_parts(comparison), html.section("Reports", *reports)])
    foot = html.paragraph(
        f"Written by Octavo {octavo.__version__}. Figures hold for the protocols printed beside them."
    )
    return html.document(f"{title} - Octavo", head, body, foot)


def _comparison_parts(comparison: Comparison) -> list[str]:
    entries = comparison.entries
    said = [
        *comparison.notes,
        *comparison.not_comparable(),
        *(f"{entry.name}: {problem}" for entry in entries for problem in entry.problems),
    ]
    said += [caveat for entry in entries for caveat in (entry.quality or {}).get("caveats", [])]
    rows = [(*figures(entry), marks(comparison, entry)) for entry in entries]
    explained = (
        f"Pareto: no other checkpoint here is better in both {comparison.loss_name} and bytes (size), or tokens per "
        "second (speed)."
    )
    if comparison.against is not None:
        explained += f" KL and top-1 agreement are against {comparison.against}."
    lines = [line for line in protocol_lines(entries) if not line.startswith("note: ")]
    table = html.table((*HEAD, "Pareto"), rows, num_names=2)
    summary = html.section(
        "All figures", table, html.paragraph(explained), *(html.paragraph(x, "quiet") for x in lines)
    )
    return [html.caveats(said), summary, size_plot(comparison), speed_plot(comparison), speed_bars(entries)]
