"""Imports never go up, and a room does not import from another room on its own floor."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.house import FLOOR_OF, FRONT_DOOR, PACKAGE, ROOT, imported_modules, python_files, room_of, rooms

#: What a room with a promise about its imports must not import, at any depth of its own files.
FORBIDDEN = {
    "core": ("torch", "numpy"),
    "kv": ("torch", "numpy"),
    "serve": ("torch",),
}


def violations(path: Path) -> list[str]:
    """Each import of a file that its floor does not allow, as `file:line imports module`."""
    own_room = room_of(path)
    if own_room is None:
        return []
    found = []
    for line, module in imported_modules(path):
        top, _, rest = module.partition(".")
        target = rest.split(".")[0]
        if top == "octavo" and not may_import(own_room, target):
            found.append(f"{path.relative_to(ROOT)}:{line} imports {module}")
    return found


def may_import(own_room: str, target: str) -> bool:
    """Whether a file of `own_room` may import `octavo.<target>`; names that are no modules (`__version__`) are free."""
    if target in FLOOR_OF:
        return target == own_room or FLOOR_OF[target] < FLOOR_OF[own_room]
    return target not in FRONT_DOOR or own_room == "cli"


def test_every_room_has_a_floor() -> None:
    assert set(rooms()) <= set(FLOOR_OF), "a new room needs a place in tests/house.py and docs/architecture.md"


def test_only_the_front_door_stands_outside_the_rooms() -> None:
    outside = {path.stem for path in PACKAGE.glob("*.py")}
    assert outside <= FRONT_DOOR | {"__main__"}


def test_no_import_goes_up() -> None:
    assert [each for path in python_files("octavo") for each in violations(path)] == []


def test_an_import_that_goes_up_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule itself, on a little house: up, sideways, relative, inside a function, and through the front door."""
    monkeypatch.setattr("tests.house.ROOT", tmp_path)
    monkeypatch.setattr("tests.house.PACKAGE", tmp_path / "octavo")
    monkeypatch.setattr("tests.test_floors.ROOT", tmp_path)
    path = tmp_path / "octavo" / "kv" / "pool.py"
    path.parent.mkdir(parents=True)
    path.write_text(
        "from octavo.core import errors\n"
        "from octavo.kv import tree\n"
        "from octavo.engine.engine import Engine\n"
        "from octavo import text\n"
        "from ..models import catalog\n"
        "def late():\n"
        "    import octavo.api\n"
    )
    assert [text.split(" imports ")[1] for text in violations(path)] == [
        "octavo.engine.engine",
        "octavo.text",
        "octavo.models",
        "octavo.api",
    ]


@pytest.mark.parametrize("room", sorted(FORBIDDEN))
def test_rooms_keep_their_promises(room: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for path in python_files(f"octavo/{room}")
        for line, module in imported_modules(path)
        if module.split(".")[0] in FORBIDDEN[room]
    ]
    assert found == []
