"""Pieces of a page: whatever is given as text is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

__all__ = [
    "caveats", "document", "escape", "facts", "figure", "folded", "paragraph", "section", "table", "tile", "tiles",
]  # fmt: skip

_STYLE_FILE = Path(__file__).with_name("style.css")


def document(title: str, head: str, body: str, foot: str) -> str:
    """A whole page that needs nothing but itself. `head`, `body` and `foot` are HTML."""
    style = _STYLE_FILE.read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f"<header>{head}</header>\n<main>\n{body}\n</main>\n<footer>{foot}</footer>\n</body>\n</html>\n"
    )


def section(title: str, *parts: str) -> str:
    """A heading and what stands under it; empty parts are left out."""
    return "\n".join([f"<h2>{escape(title)}</h2>", *filter(None, parts)])


def paragraph(text: str, kind: str = "") -> str:
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def tile(what: str, figure: str, note: str = "") -> str:
    """One figure to see at a glance."""
    below = f'<div class="note">{escape(note)}</div>' if note else ""
    return (
        f'<div class="tile"><div class="what">{escape(what)}</div>'
        f'<div class="figure">{escape(figure)}</div>{below}</div>'
    )


def tiles(parts: Sequence[str]) -> str:
    return f'<div class="tiles">{"".join(parts)}</div>' if parts else ""


def caveats(lines: Sequence[str]) -> str:
    """What must be read before the figures; nothing for no lines."""
    inner = "".join(f"<p>{escape(line)}</p>" for line in dict.fromkeys(lines))
    return f'<div class="caveats" role="note">{inner}</div>' if inner else ""


def table(head: Sequence[str], rows: Sequence[Sequence[str]], num_names: int = 1, caption: str = "") -> str:
    """Cells are texts; the first `num_names` columns are names, the others numbers, to the right."""
    kinds = ["name" if place < num_names else "number" for place in range(len(head))]
    titles = "".join(
        f'<th scope="col" class="{kind}">{escape(cell)}</th>' for kind, cell in zip(kinds, head, strict=True)
    )
    lines = "\n".join(
        "<tr>"
        + "".join(f'<td class="{kind}">{escape(cell)}</td>' for kind, cell in zip(kinds, row, strict=True))
        + "</tr>"
        for row in rows
    )
    said = f'<caption class="quiet">{escape(caption)}</caption>' if caption else ""
    return (
        f'<div class="scroll"><table>{said}<thead><tr>{titles}</tr></thead>\n<tbody>\n{lines}\n</tbody></table></div>'
    )


def facts(rows: Sequence[tuple[str, str]]) -> str:
    """Names and what is known of them."""
    lines = "\n".join(f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in rows)
    return f'<div class="scroll"><table class="facts"><tbody>\n{lines}\n</tbody></table></div>'


def figure(chart: str, caption: str, data: str, legend: str = "") -> str:
    """A chart, what it shows, and its numbers as a table that can be unfolded. `chart`, `data`, `legend` are HTML."""
    return (
        f"<figure><figcaption>{escape(caption)}</figcaption>\n{chart}\n{legend}\n"
        f"<details><summary>The numbers of this plot</summary>{data}</details></figure>"
    )


def folded(title: str, content: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{content}</details>"
