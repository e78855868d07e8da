"""A model from the Hugging Face hub: safetensors with their config and tokenizer, or one GGUF file."""

from __future__ import annotations

import fnmatch
import json
import urllib.request
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.core.errors import DownloadError, InvalidField
from octavo.core.units import format_bytes
from octavo.weights.download import RemoteFile, check_disk, download
from octavo.weights.pull_index import RECORD_NAME, PullProgress, locked, shifted, write_record

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo

#: What travels beside the weights: config, tokenizer, chat template, licence.
_COMPANIONS = ("*.json", "tokenizer.model", "*.jinja", "merges.txt", "vocab.txt", "LICENSE*", "NOTICE*", "USE_POLICY*")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository; `sha256` is None for small files that git itself holds."""

    name: str
    num_bytes: int
    sha256: str | None


@dataclass(frozen=True, slots=True)
class HubModel:
    """A pulled repository: `path` is what to load, a directory or its one GGUF file."""

    path: Path
    revision: str

    @classmethod
    def read(cls, directory: Path) -> HubModel | None:
        """The model that a finished pull left in `directory`, or None."""
        record = directory / RECORD_NAME
        if not record.exists():
            return None
        content = json.loads(record.read_text())
        source, names = str(content["source"]), list(content["files"])
        if "@" not in source or not all((directory / name).exists() for name in names):
            return None
        return cls(_path_to_load(directory, names), source.rpartition("@")[2])


def pull_from_hub(
    name: str,
    directory: Path,
    progress: PullProgress,
    *,
    file: str | None = None,
    revision: str | None = None,
    endpoint: str | None = None,
) -> HubModel:
    """Fetch ORG/NAME at `revision` (default: the main branch) into `directory`; a killed pull goes on where it was.

    Only safetensors, GGUF and their companions are fetched. A repository with nothing but pickles is refused: reading
    a pickle runs the code in it. `file` (a name or a pattern) chooses among several GGUF files. Files that the hub
    has a sha256 of are checked against it, those that are here already too. Raises `DownloadError`, `InvalidField`.
    """
    info = _model_info(name, revision, endpoint)
    files = choose_files(name, _files_of(info), file)
    commit = str(info.sha)
    check_disk(directory, sum(each.num_bytes for each in files if not (directory / each.name).exists()))
    with locked(directory):
        download_small(name, commit, directory, endpoint, [each.name for each in files if each.sha256 is None])
        download_large(name, commit, directory, endpoint, [each for each in files if each.sha256], progress)
        write_record(directory, f"{name}@{commit}", {each.name: each.sha256 or "" for each in files})
    return HubModel(_path_to_load(directory, [each.name for each in files]), commit)


def choose_files(name: str, files: list[HubFile], file: str | None = None) -> list[HubFile]:
    """The files of a repository that make a model Octavo reads; its top folder only.

    Raises `InvalidField` when a GGUF must be chosen, `DownloadError` when there is nothing to read.
    """
    top = [each for each in files if "/" not in each.name]
    safetensors = [each for each in top if each.name.endswith(".safetensors")]
    ggufs = [each for each in files if each.name.endswith(".gguf")]
    if file is not None:
        return _chosen_gguf(ggufs, file)
    if safetensors:
        return safetensors + [each for each in top if any(fnmatch.fnmatch(each.name, kind) for kind in _COMPANIONS)]
    if len(ggufs) == 1:
        return ggufs
    if ggufs:
        raise InvalidField("file", None, f"{name} has several; choose one: {_listed(ggufs)}")
    pickles = [each.name for each in files if each.name.endswith(_PICKLES)]
    if pickles:
        raise DownloadError(
            f"{name} holds its weights only as pickles ({', '.join(pickles[:3])}). Reading a pickle runs the code in "
            f"it, so Octavo does not; look for a conversion to safetensors, often a branch of its own (--revision)"
        )
    raise DownloadError(f"{name} holds neither safetensors nor GGUF files")


def _chosen_gguf(ggufs: list[HubFile], file: str) -> list[HubFile]:
    chosen = [each for each in ggufs if fnmatch.fnmatch(each.name, file)]
    if len(chosen) != 1:
        expected = f"must match exactly one of: {_listed(ggufs) or 'no GGUF files'}"
        raise InvalidField("file", file, expected)
    return chosen


def _listed(files: list[HubFile]) -> str:
    return ", ".join(f"{each.name} ({format_bytes(each.num_bytes)})" for each in files)


def _model_info(name: str, revision: str | None, endpoint: str | None) -> ModelInfo:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        return HfApi(endpoint=endpoint).model_info(name, revision=revision, files_metadata=True, timeout=30)
    except GatedRepoError as error:
        raise DownloadError(f"{name}: accept its terms on the hub, then log in with `hf auth login`") from error
    except RevisionNotFoundError as error:
        raise DownloadError(f"{name} has no revision {revision!r}") from error
    except RepositoryNotFoundError as error:
        raise DownloadError(f"the hub has no model {name}, or it is private (`hf auth login`)") from error
    except Exception as error:
        raise unreachable(name, error) from error


def _files_of(info: ModelInfo) -> list[HubFile]:
    return [
        HubFile(each.rfilename, each.size or 0, each.lfs.sha256 if each.lfs is not None else None)
        for each in info.siblings or []
    ]


def download_small(
    name: str, commit: str, directory: Path, endpoint: str | None, files: list[str], kind: str = "model"
) -> None:
    """What git itself holds: config, templates. `kind` is "model" or "dataset"."""
    from huggingface_hub import snapshot_download
    from tqdm import tqdm

    class Silent(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs | {"disable": True})

    if not files:
        return
    patterns = [file.replace("[", "[[]") for file in files]
    try:
        snapshot_download(
            name,
            repo_type=kind,
            revision=commit,
            local_dir=directory,
            allow_patterns=patterns,
            endpoint=endpoint,
            tqdm_class=Silent,
        )
    except Exception as error:
        raise unreachable(name, error) from error
    missing = [file for file in files if not (directory / file).exists()]
    if missing:
        raise DownloadError(f"{name}: the hub did not send {', '.join(missing)}")


def download_large(
    name: str,
    commit: str,
    directory: Path,
    endpoint: str | None,
    files: list[HubFile],
    progress: PullProgress,
    kind: str = "model",
) -> None:
    """What lies in large file storage. By our own download: the hub's client (2.4) begins a file anew after a kill."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers

    authorization = build_hf_headers().get("authorization")
    opener = urllib.request.build_opener()
    total = sum(each.num_bytes for each in files)
    before = 0
    for each in files:
        url = hf_hub_url(name, each.name, repo_type=kind, revision=commit, endpoint=endpoint)
        remote = RemoteFile(url, str(each.sha256), each.num_bytes, authorization)
        download(remote, directory / each.name, opener, partial(shifted, progress, before, total))
        before += each.num_bytes
        progress(before, total)


_COPY_A_MODEL = "copy the model's directory from a machine that has it and name it by its path"


def unreachable(name: str, error: Exception, instead: str = _COPY_A_MODEL) -> DownloadError:
    """What to say of a failed pull; `instead` is what works without a network."""
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return DownloadError(
        f"{name} could not be pulled from the Hugging Face hub: {reason}\nWithout a network: {instead}."
    )


def _path_to_load(directory: Path, names: list[str]) -> Path:
    ggufs = [name for name in names if name.endswith(".gguf")]
    return directory / ggufs[0] if ggufs and not any(name.endswith(".safetensors") for name in names) else directory
