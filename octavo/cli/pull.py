"""`octavo pull`: fetch a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from octavo.core.units import format_bytes


def run(
    name: Annotated[str | None, typer.Argument(help="A catalog name, or ORG/NAME on the Hugging Face hub.")] = None,
    to: Annotated[Path | None, typer.Option(help="Directory for the model [~/.cache/octavo/models/NAME].")] = None,
    accept_terms: Annotated[bool, typer.Option("--accept-terms", help="You accept the model's licence terms.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Read what is there already and repair it.")] = False,
    file: Annotated[str | None, typer.Option(help="Which GGUF file of a hub repository (name or pattern).")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub repository.")] = None,
    endpoint: Annotated[str | None, typer.Option(help="URL of another hub.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Fetch a model, checked against its checksum; a pull that was cut short goes on where it was.

    Without a NAME: list the catalog.
    """
    from octavo.models import catalog
    from octavo.weights.pull_progress import terminal_progress

    if name is None:
        _print_catalog(as_json)
        return
    with terminal_progress(name) as progress:
        path = catalog.pull(
            name,
            to,
            accept_terms=accept_terms,
            check=check,
            file=file,
            revision=revision,
            endpoint=endpoint,
            progress=progress,
        )
    files = [path] if path.is_file() else [each for each in path.iterdir() if each.is_file()]
    num_bytes = sum(each.stat().st_size for each in files)
    if as_json:
        print(json.dumps({"name": name, "path": str(path), "bytes": num_bytes}))
    else:
        print(f"{name}: {path} ({format_bytes(num_bytes)})")


def _print_catalog(as_json: bool) -> None:
    from octavo.models import catalog

    rows = [
        {
            "name": entry.name,
            "title": entry.title,
            "licence": entry.licence,
            "bytes": entry.recipe.num_bytes,
            "path": str(path) if (path := catalog.pulled(entry.name)) else None,
        }
        for entry in catalog.CATALOG.values()
    ]
    if as_json:
        print(json.dumps({"models": rows}))
        return
    for entry, row in zip(catalog.CATALOG.values(), rows, strict=True):
        place = row["path"] or "not pulled"
        print(f"{entry.name:14} {format_bytes(entry.recipe.num_bytes):>10}  {entry.title}; {entry.licence}; {place}")
