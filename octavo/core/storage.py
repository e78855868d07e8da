"""Writing where there may be no room left."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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


def _number_in(text: str) -> int | None:
    match = _NUMBER.search(text)
    return None if match is None else int(match[1])
