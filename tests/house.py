"""The house as the tests that guard it see it: its source files, parsed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "octavo"

#: Lowest first. A room imports from lower floors, never from its own floor or above. (`core` and `numerics` share
#: the ground floor in the plan; `numerics` raises `core`'s errors, and nothing goes the other way.)
FLOORS = (
    ("core",),
    ("numerics",),
    ("kv", "text"),
    ("ops", "weights"),
    ("models",),
    ("quantize", "engine"),
    ("measure", "serve"),
    ("cli",),
)
FLOOR_OF = {room: height for height, rooms in enumerate(FLOORS) for room in rooms}

#: Files above all floors.
FRONT_DOOR = {"__init__", "api", "jobs", "fit_job", "export_job"}


def python_files(*folders: str) -> list[Path]:
    """Python files under the named folders of the repository."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def rooms() -> list[str]:
    """Folders of the package that hold Python files."""
    return sorted(path.name for path in PACKAGE.iterdir() if path.is_dir() and any(path.rglob("*.py")))


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def room_of(path: Path) -> str | None:
    """The room a file of the package is in; None for files that are in none."""
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else None


def imported_modules(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import in the file, wherever it stands; relative ones made absolute.

    `from octavo import kv` counts as `octavo.kv`.
    """
    package = list(path.relative_to(ROOT).parent.parts)
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join(base + ([node.module] if node.module else []))
            if module == "octavo":
                for alias in node.names:
                    yield node.lineno, f"octavo.{alias.name}"
            else:
                yield node.lineno, module


def docstring_lines(tree: ast.Module) -> set[int]:
    """Lines that are covered by docstrings and other bare strings."""
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
