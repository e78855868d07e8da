"""`octavo quantize`: make a model smaller and measure what that costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli.calibration_options import Samples, SequenceLength, Sources
from octavo.cli.recipe_options import takes_recipe

if TYPE_CHECKING:
    from octavo.quantize.preflight import Plan
    from octavo.quantize.recipe import Recipe


@takes_recipe
def run(
    model: Annotated[str, typer.Argument(help="A directory, a .gguf file or a catalog name.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Directory to write.")],
    recipe: Recipe,
    calibration: Sources = None,
    samples: Samples = 32,
    sequence_length: SequenceLength = 512,
    statistics: Annotated[
        str | None, typer.Option(help="What `octavo calibrate` left, or `auto`: the model is not run again.")
    ] = None,
    eval_text: Annotated[Path | None, typer.Option(help="Text to measure on; default: held-out built-in text.")] = None,
    eval_windows: Annotated[int, typer.Option(help="Windows to measure on.")] = 4,
    measure: Annotated[bool, typer.Option(help="Measure the written file.")] = True,
    report_file: Annotated[
        Path | None, typer.Option("--report", help="Write a self-contained HTML report of the written file here.")
    ] = None,
    beside: Annotated[
        list[str] | None, typer.Option("--report-beside", help="Another checkpoint for its plots; may be repeated.")
    ] = None,
    report_speed: Annotated[bool, typer.Option(help="For --report: measure how fast the file is served.")] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Pre-flight only.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Quantize MODEL into a checkpoint that other engines read, and store its measured loss beside it.

    A killed run goes on where it was when the same command is given again.
    """
    from octavo.api import Measurement, Page, plan_quantization, quantize
    from octavo.cli.progress import progress_bar
    from octavo.core.errors import InvalidField

    if beside and report_file is None:
        raise InvalidField("--report-beside", beside, "it is for the plots of --report")
    page = None if report_file is None else Page(report_file, tuple(beside or ()), report_speed)
    if dry_run:
        plan = plan_quantization(model, recipe, samples, sequence_length, output)
        print(json.dumps({"recipe": recipe.to_dict(), **plan.to_dict()}) if as_json else _plan_text(recipe, plan))
        return
    with progress_bar() as (progress, say):
        report = quantize(
            model,
            output,
            **recipe.to_dict(),
            calibration=calibration,
            samples=samples,
            sequence_length=sequence_length,
            statistics=statistics,
            measure=Measurement(eval_text, eval_windows) if measure else None,
            page=page,
            progress=progress,
            say=say,
        )
    if as_json:
        print(json.dumps(report.to_dict()))
        return
    print(report)
    if report.quality_text is not None:
        print(report.quality_text)


def _plan_text(recipe: Recipe, plan: Plan) -> str:
    notes = "".join(f"\nnote: {note}" for note in (*plan.caveats, *plan.notes))
    return f"{recipe}\n{plan}{notes}\nnothing was written (--dry-run)"
