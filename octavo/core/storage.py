"""Writing where there may be no room left."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from octavo.core.errors import StorageFull

#: No space on the device, a user's quota, and a limit on the size of files.
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
#: How libraries written in Rust name the system's error in their own exceptions' text.
_NUMBER = re.compile(r"\(os error (\d+)\)")


@contextmanager
def writing(target: Path) -> Iterator[None]:
    """Whatever says, within, that there is no room becomes `StorageFull`, which names `target`."""
    try:
        yield
    except Exception as error:
        number = error.errno if isinstance(error, OSError) else _number_in(str(error))
        if number not in _FULL:
            raise
        assert number is not None
        raise StorageFull(f"{target} could not be written: {os.strerror(number).lower()}") from error


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """Where to write what becomes `file` when the block ends: beside its place, then synced and renamed, so that a
    file that is there is whole. On failure nothing has happened; what a killed writer left is written over. Raises
    `StorageFull`."""
    partial = file.with_name(f".{file.name}.partial")
    partial.unlink(missing_ok=True)
    try:
        with writing(file), for_everyone(partial):
            yield partial
        sync(partial)
        partial.replace(file)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync(file.absolute().parent)


@contextmanager
def for_everyone(file: Path) -> Iterator[None]:
    """Whoever writes `file` within, it gets the permissions of any new file: safetensors makes files that their owner
    alone may read, and a server may be somebody else."""
    file.touch()
    mode = file.stat().st_mode
    yield
    file.chmod(mode)


def sync(path: Path) -> None:
    """To the disk: a file's content, or a directory's names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(file: Path, content: Any) -> None:
    """Whole or not at all. Raises `StorageFull`."""
    with replacing(file) as partial:
        partial.write_text(json.dumps(content, indent=1), encoding="utf-8")


def _number_in(text: str) -> int | None:
    match = _NUMBER.search(text)
    return None if match is None else int(match[1])
