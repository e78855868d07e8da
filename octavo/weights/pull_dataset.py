"""Text from a data set of the Hugging Face hub: one file of one split, pinned to a commit, kept for the next time."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.core.errors import DownloadError, InvalidField
from octavo.weights.download import check_disk
from octavo.weights.pull_hub import HubFile, download_large, download_small, unreachable
from octavo.weights.pull_index import RECORD_NAME, PullProgress, locked, write_record
from octavo.weights.pull_progress import terminal_progress

if TYPE_CHECKING:
    from huggingface_hub.hf_api import DatasetInfo

#: What can be read, the simplest first.
_SUFFIXES = (".jsonl", ".parquet")
_DEFAULT_SPLIT = "train"
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True, slots=True)
class HubDataset:
    """A data set's file on this disk. `title` says which of how many it is, and of which commit; `column` is what the
    user asked for, None for the usual names."""

    path: Path
    title: str
    column: str | None


def datasets_directory() -> Path:
    """Where pulled data sets live: `~/.cache/octavo/datasets`."""
    return Path.home() / ".cache" / "octavo" / "datasets"


def pull_dataset(
    name: str, *, directory: Path | None = None, endpoint: str | None = None, progress: PullProgress | None = None
) -> HubDataset:
    """The first file of `ORG/NAME[:SPLIT[:COLUMN]]` (split: train), from the cache if it is there.

    One file holds more text than calibration wants, and a web corpus has thousands, so the others are not fetched;
    `title` says so. Raises `InvalidField` (names, splits), `DownloadError` (unreachable, nothing to read in it).
    """
    repository, split, column = _parse(name)
    directory = directory or datasets_directory() / repository / split
    found = _read_record(directory, column)
    if found is not None:
        return found
    info = _dataset_info(repository, endpoint)
    files = [
        HubFile(each.rfilename, each.size or 0, each.lfs.sha256 if each.lfs is not None else None)
        for each in info.siblings or []
    ]
    file, number = choose_file(repository, files, split)
    commit = str(info.sha)
    check_disk(directory, file.num_bytes)
    with locked(directory), terminal_progress(f"{repository}:{split}") as shown:
        if file.sha256 is None:
            download_small(repository, commit, directory, endpoint, [file.name], kind="dataset")
        else:
            download_large(repository, commit, directory, endpoint, [file], progress or shown, kind="dataset")
        title = f"hf:{repository}@{commit[:12]}:{file.name} (file 1 of {number} of split {split})"
        write_record(directory, title, {file.name: file.sha256 or ""})
    return HubDataset(directory / file.name, title, column)


def choose_file(repository: str, files: list[HubFile], split: str) -> tuple[HubFile, int]:
    """(the first readable file of `split`, how many it has). A file belongs to the split that a word of its name or a
    folder says; a repository's only readable file is every split's."""
    for suffix in _SUFFIXES:
        readable = sorted((each for each in files if each.name.endswith(suffix)), key=lambda each: each.name)
        chosen = [each for each in readable if split in re.split(r"[/._-]", each.name)]
        if chosen:
            return chosen[0], len(chosen)
        if len(readable) == 1:
            return readable[0], 1
    names = [each.name for each in files]
    readable_names = [each for each in names if each.endswith(_SUFFIXES)]
    if readable_names:
        raise InvalidField("calibration", f"hf:{repository}:{split}", f"its files are {', '.join(readable_names[:5])}")
    kinds = sorted({Path(each).suffix or each for each in names})
    raise DownloadError(f"{repository} holds no {' or '.join(_SUFFIXES)} files, only {', '.join(kinds)}")


def _parse(name: str) -> tuple[str, str, str | None]:
    repository, *rest = name.split(":")
    if _NAME.fullmatch(repository) is None or len(rest) > 2 or not all(rest):
        raise InvalidField(
            "calibration", f"hf:{name}", "write hf:ORG/NAME, hf:ORG/NAME:SPLIT or hf:ORG/NAME:SPLIT:COLUMN"
        )
    split = rest[0] if rest else _DEFAULT_SPLIT
    if not re.fullmatch(r"[\w-]+", split):
        raise InvalidField("calibration", f"hf:{name}", f"{split!r} is no split; one is called {_DEFAULT_SPLIT}")
    return repository, split, rest[1] if len(rest) > 1 else None


def _read_record(directory: Path, column: str | None) -> HubDataset | None:
    record = directory / RECORD_NAME
    if not record.exists():
        return None
    content = json.loads(record.read_text())
    (name,) = content["files"]
    return HubDataset(directory / name, content["source"], column) if (directory / name).exists() else None


def _dataset_info(name: str, endpoint: str | None) -> DatasetInfo:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    try:
        return HfApi(endpoint=endpoint).dataset_info(name, files_metadata=True, timeout=30)
    except GatedRepoError as error:
        raise DownloadError(f"{name}: accept its terms on the hub, then log in with `hf auth login`") from error
    except RepositoryNotFoundError as error:
        raise DownloadError(f"the hub has no data set {name}, or it is private (`hf auth login`)") from error
    except Exception as error:
        raise _unreachable(name, error) from error


def _unreachable(name: str, error: Any) -> DownloadError:
    return unreachable(name, error, "copy the text to a .jsonl file and name it by its path")
