"""docs/users-cases.md names all 25 cases, and tests that exist."""

from __future__ import annotations

import ast
import re

from tests.house import ROOT, parse

PAGE = ROOT / "docs" / "users-cases.md"
NUM_CASES = 25
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def rows() -> list[list[str]]:
    """Cells of the table's rows, the head and the rule aside."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.split("|")[1].strip().isdigit()
    ]


def test_every_case_is_answered() -> None:
    table = rows()
    assert [int(row[0]) for row in table] == list(range(1, NUM_CASES + 1))
    assert all(len(row) == 4 and all(row) for row in table)
    assert [row[0] for row in table if not _TEST.findall(row[3])] == []


def test_every_named_test_exists() -> None:
    named = {each for row in rows() for each in _TEST.findall(row[3])}
    functions = {
        file: {node.name for node in ast.walk(parse(ROOT / file)) if isinstance(node, ast.FunctionDef)}
        for file in {file for file, _ in named}
        if (ROOT / file).exists()
    }
    missing = [f"{file}::{name}" for file, name in sorted(named) if name not in functions.get(file, ())]
    assert missing == []
