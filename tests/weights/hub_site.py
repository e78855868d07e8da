"""A stand-in for the Hugging Face hub: the repository API, the tree and the files, as huggingface_hub asks for them."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from tests.weights.file_server import FileServer, Reply

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def hub_site(repository: str, files: dict[str, bytes], kind: str = "models") -> FileServer:
    """One repository of `kind` "models" or "datasets". Files above 100 bytes are in LFS, so the hub knows their
    sha256."""
    site, folder = FileServer(), "" if kind == "models" else f"{kind}/"
    siblings = [_sibling(name, content) for name, content in files.items()]
    info = {"_id": "1", "id": repository, "modelId": repository, "sha": COMMIT, "siblings": siblings, "private": False}
    info |= {"author": repository.partition("/")[0], "tags": [], "downloads": 0, "likes": 0, "gated": False}
    for path in (f"/api/{kind}/{repository}", f"/api/{kind}/{repository}/revision/main"):
        site.replies[path] = Reply(json.dumps(info).encode(), "application/json")
    site.replies[f"/api/{kind}/{repository}/revision/{COMMIT}"] = site.replies[f"/api/{kind}/{repository}"]
    tree = [_tree_entry(name, content) for name, content in files.items()]
    site.replies[f"/api/{kind}/{repository}/tree/{COMMIT}"] = Reply(json.dumps(tree).encode(), "application/json")
    for name, content in files.items():
        etag = f'"{_sha256(content) if _in_lfs(content) else _blob_id(content)}"'
        headers = {"ETag": etag, "X-Repo-Commit": COMMIT, "X-Linked-Etag": etag, "X-Linked-Size": str(len(content))}
        site.replies[f"/{folder}{repository}/resolve/{COMMIT}/{name}"] = Reply(content, headers=headers)
    return site


def _in_lfs(content: bytes) -> bool:
    return len(content) > 100


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _blob_id(content: bytes) -> str:
    """Git's name of the file."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _sibling(name: str, content: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": _blob_id(content)}
    if _in_lfs(content):
        entry["lfs"] = {"sha256": _sha256(content), "size": len(content), "pointerSize": 130}
    return entry


def _tree_entry(name: str, content: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": name, "size": len(content), "oid": _blob_id(content)}
    if _in_lfs(content):
        entry["lfs"] = {"oid": _sha256(content), "size": len(content), "pointerSize": 130}
    return entry
