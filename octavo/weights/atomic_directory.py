"""A directory that appears whole or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from octavo.core.storage import sync, writing


@contextmanager
def atomic_directory(target: Path) -> Iterator[Path]:
    """Yield an empty sibling to fill; on success it takes `target`'s place, on failure nothing has happened.

    What stood at `target` is removed only after the new directory is safely on disk under that name. A directory
    left by a killed writer is removed, and a replaced one that lost its name to a kill gets it back.
    """
    target = target.absolute()
    partial = target.with_name(f".{target.name}.partial")
    replaced = target.with_name(f".{target.name}.replaced")
    restore_replaced(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        with writing(target):
            yield partial
            for file in partial.rglob("*"):
                sync(file)
            sync(partial)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    if target.exists():
        target.rename(replaced)
    partial.rename(target)
    sync(target.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def restore_replaced(target: Path) -> None:
    """Undo a replacement that was killed between its two renames."""
    replaced = target.with_name(f".{target.name}.replaced")
    if not replaced.exists():
        return
    if target.exists():
        shutil.rmtree(replaced)
    else:
        replaced.rename(target)
