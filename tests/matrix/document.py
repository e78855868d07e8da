"""docs/matrix.md: a grid for each table, the reasons below it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.matrix.tables import LOSSY, WORKS, Table

FILE = Path(__file__).parents[2] / "docs" / "matrix.md"

HEAD = """# What goes together

Every pair below was tried on a tiny model by `tests/matrix/test_matrix.py`: it works (yes), it works at a price that is
said (lossy), or it is refused with a reason (no); the numbers are those of the lines under the table. SCHEME
there is the row's own. The test fails where this page says something else; `python -m tests.matrix.generate` writes it.
"""


def section(table: Table, outcomes: Mapping[tuple[str, str], str]) -> str:
    """The part of the page on one table. The longer side of a wide table goes down the page."""
    rows, columns = list(table.rows), list(table.columns)
    flipped = len(columns) > len(rows)
    reasons = {reason: number for number, reason in enumerate(_reasons(outcomes), 1)}

    def cell(down: str, across: str) -> str:
        outcome = outcomes[(across, down) if flipped else (down, across)]
        if outcome == WORKS:
            return "yes"
        return f"{'lossy' if outcome.startswith(LOSSY) else 'no'} ({reasons[outcome]})"

    down, across = (columns, rows) if flipped else (rows, columns)
    lines = [f"## {table.name}", "", table.about, "", f"| | {' | '.join(across)} |", f"|---|{'---|' * len(across)}"]
    lines += [f"| {each} | {' | '.join(cell(each, other) for other in across)} |" for each in down]
    if reasons:
        lines += ["", *(f"{number}. {_escaped(reason)}" for reason, number in reasons.items())]
    return "\n".join(lines) + "\n"


def page(sections: list[str]) -> str:
    return "\n".join([HEAD, *sections])


def section_of_file(table: Table) -> str:
    """What the committed page says of `table`; empty where it has no such part."""
    parts = FILE.read_text(encoding="utf-8").split("\n## ")[1:] if FILE.exists() else []
    found = [part for part in parts if part.startswith(f"{table.name}\n")]
    return f"## {found[0].rstrip()}\n" if found else ""


def _reasons(outcomes: Mapping[tuple[str, str], str]) -> dict[str, None]:
    return dict.fromkeys(outcome for outcome in outcomes.values() if outcome != WORKS)


def _escaped(reason: str) -> str:
    return reason.replace("|", "\\|").replace("<", "&lt;")
