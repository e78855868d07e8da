"""One file over HTTP: resumed where it stopped, checked, and put in place whole or not at all."""

from __future__ import annotations

import base64
import hashlib
import http.client
import os
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from octavo.core.errors import DownloadError
from octavo.core.units import format_bytes

#: Called with (bytes of this file that are here, bytes of the file).
Progress = Callable[[int, int], None]

_ATTEMPTS = 5
_CHUNK_BYTES = 1 << 16  # what a kill can lose
_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file somewhere else, known by its checksum. `authorization` is the header of that name, never sent on to
    another address that the server points to."""

    url: str
    sha256: str
    num_bytes: int
    authorization: str | None = None


def download(remote: RemoteFile, target: Path, opener: urllib.request.OpenerDirector, progress: Progress) -> None:
    """Fetch `remote` to `target`; returns at once if it is there already.

    Bytes gather in `<target>.<checksum>.part`, so a killed download goes on where it was and never mixes versions.
    Raises `DownloadError`: unreachable, refused, disk full, or other bytes than the checksum promises.
    """
    if target.exists() and sha256_of(target) == remote.sha256:
        progress(remote.num_bytes, remote.num_bytes)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.{remote.sha256[:12]}.part")
    was_resumed = partial.exists()
    _fetch(remote, partial, opener, progress)
    if was_resumed and sha256_of(partial) != remote.sha256:
        partial.unlink()  # what an earlier run left behind may be what is wrong: once more, from the start
        _fetch(remote, partial, opener, progress)
    found = sha256_of(partial)
    if found != remote.sha256:
        partial.unlink()
        raise DownloadError(
            f"{target.name} arrived damaged or is another file: its sha256 is {found}, expected {remote.sha256}; "
            f"it was deleted, try again"
        )
    os.replace(partial, target)


def open_url(
    url: str, opener: urllib.request.OpenerDirector, headers: dict[str, str], authorization: str | None = None
) -> Any:
    """Open a URL; a user name and password in it become an Authorization header."""
    parts = urlsplit(url)
    if parts.username is not None:
        credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        authorization = "Basic " + base64.b64encode(credentials).decode()
        url = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    request = urllib.request.Request(url, headers=headers)
    if authorization is not None:
        request.add_unredirected_header("Authorization", authorization)
    return opener.open(request, timeout=_TIMEOUT_SECONDS)


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_disk(directory: Path, num_bytes: int) -> None:
    """Raises `DownloadError` with both figures if the disk under `directory` has less than `num_bytes` free."""
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free < num_bytes:
        raise DownloadError(f"{directory} needs {format_bytes(num_bytes)} but {format_bytes(free)} are free")


def _fetch(remote: RemoteFile, partial: Path, opener: urllib.request.OpenerDirector, progress: Progress) -> None:
    """Bring `partial` to its full length, trying again where it broke off."""
    for attempt in range(_ATTEMPTS):
        before = _length(partial)
        try:
            _append(remote, partial, opener, progress)
            return
        except urllib.error.HTTPError as error:
            if error.code < 500 and error.code not in (408, 416, 429):
                raise DownloadError(f"{_host(remote.url)} answered {error.code} {error.reason}") from error
            failure: Exception = error
            if error.code == 416:  # what is here does not fit the file there
                partial.unlink(missing_ok=True)
        except (OSError, http.client.HTTPException) as error:
            failure = error
        if attempt + 1 < _ATTEMPTS and _length(partial) <= before:
            time.sleep(0.25 * 2**attempt)
    name = urlsplit(remote.url).path.rpartition("/")[2]
    raise DownloadError(f"could not fetch {name} from {_host(remote.url)}: {getattr(failure, 'reason', failure)}")


def _append(remote: RemoteFile, partial: Path, opener: urllib.request.OpenerDirector, progress: Progress) -> None:
    """Ask for the bytes that are missing and append them. Raises `ConnectionError` if fewer came."""
    if _length(partial) > remote.num_bytes:
        partial.unlink()
    start = _length(partial)
    if start == remote.num_bytes:
        return
    headers = {"Range": f"bytes={start}-"} if start else {}
    with open_url(remote.url, opener, headers, remote.authorization) as response:
        goes_on = start > 0 and _goes_on_at(response, start)
        with partial.open("ab" if goes_on else "wb") as file:
            num_bytes = start if goes_on else 0
            while chunk := response.read(_CHUNK_BYTES):
                try:
                    file.write(chunk)
                except OSError as error:
                    raise DownloadError(f"could not write {partial}: {error}") from error
                num_bytes += len(chunk)
                progress(num_bytes, remote.num_bytes)
    if num_bytes < remote.num_bytes:
        raise ConnectionError(f"the connection ended after {num_bytes} of {remote.num_bytes} bytes")


def _goes_on_at(response: Any, start: int) -> bool:
    """Whether the answer is the rest from `start`, not the whole file again."""
    return response.status == 206 and str(response.headers.get("Content-Range", "")).startswith(f"bytes {start}-")


def _length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _host(url: str) -> str:
    parts = urlsplit(url)
    return parts.hostname or parts.path
