"""`octavo fit`: mixed precision, the best model within a budget."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli.calibration_options import Samples, SequenceLength, Sources
from octavo.cli.recipe_options import takes_recipe

if TYPE_CHECKING:
    from octavo.quantize.recipe import Recipe


@takes_recipe
def run(
    model: Annotated[str, typer.Argument(help="A directory, a .gguf file or a catalog name.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Directory to write.")],
    recipe: Recipe,
    size: Annotated[str | None, typer.Option("--bytes", help="At most this, the whole file: 80MB, 76MiB.")] = None,
    bpw: Annotated[float | None, typer.Option(help="At most so many bits per weight, everything counted.")] = None,
    max_kl: Annotated[float | None, typer.Option(help="The smallest file of at most this KL, nats per token.")] = None,
    calibration: Sources = None,
    samples: Samples = 32,
    sequence_length: SequenceLength = 512,
    statistics: Annotated[
        Path | None, typer.Option(help="Where statistics are or go; default: in ~/.cache/octavo/statistics.")
    ] = None,
    zero_points: Annotated[
        bool, typer.Option(help="2- and 3-bit modules may have zero points, which transformers does not load.")
    ] = True,
    eval_text: Annotated[Path | None, typer.Option(help="Text to measure on; default: held-out built-in text.")] = None,
    eval_windows: Annotated[int, typer.Option(help="Windows to measure on.")] = 4,
    measure: Annotated[bool, typer.Option(help="Measure the written file.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Quantize MODEL with a scheme of its own for every group of modules, the embedding among them.

    One of --bytes, --bpw and --max-kl is the budget. --bits, --group, --scheme, --asymmetric and --embedding-bits are
    what the fit chooses. A killed run goes on where it was, and another budget uses the same estimates.
    """
    from octavo.api import Measurement, fit
    from octavo.cli.progress import progress_bar
    from octavo.core.units import parse_bytes

    with progress_bar() as (progress, say):
        report = fit(
            model,
            output,
            num_bytes=None if size is None else parse_bytes(size, "bytes"),
            bits_per_weight=bpw,
            max_divergence=max_kl,
            calibration=calibration,
            samples=samples,
            sequence_length=sequence_length,
            statistics=statistics,
            zero_points=zero_points,
            measure=Measurement(eval_text, eval_windows) if measure else None,
            progress=progress,
            say=say,
            **recipe.to_dict(),
        )
    print(json.dumps(report.to_dict()) if as_json else report)
