"""`octavo calibrate`: run a model over text once, so that methods and bits can be compared without running it again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from octavo.cli.calibration_options import Samples, SequenceLength, Sources


def run(
    model: Annotated[str, typer.Argument(help="A directory, a .gguf file or a catalog name.")],
    calibration: Sources = None,
    samples: Samples = 32,
    sequence_length: SequenceLength = 512,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Directory; default: in ~/.cache/octavo/statistics.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Keep what quantization needs to know of MODEL: the inputs of its linears on calibration text.

    Then `octavo quantize MODEL --statistics DIR` (or `auto`) does not run the model, and `octavo fit` begins at once.
    A killed run goes on where it was when the same command is given again.
    """
    from octavo.api import calibrate
    from octavo.cli.progress import progress_bar

    with progress_bar() as (progress, say):
        cache = calibrate(
            model,
            calibration=calibration,
            samples=samples,
            sequence_length=sequence_length,
            output=output,
            progress=progress,
            say=say,
        )
    fields = {"directory": str(cache.directory), "bytes": cache.num_bytes, "key": cache.key.sha256}
    print(json.dumps({**fields, "calibration": cache.calibration}) if as_json else cache.directory)
