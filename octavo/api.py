"""The front door: `octavo.quantize(...)` and `octavo.evaluate(...)`, the functions behind the commands."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.core.errors import InvalidField
from octavo.jobs import CalibrationSources, CalibrationText, Measurement, Progress, QuantizeJob, Say

if TYPE_CHECKING:
    from octavo.export_job import ExportReport
    from octavo.fit_job import FitReport
    from octavo.measure.compare.comparison import Comparison
    from octavo.measure.report import QualityReport
    from octavo.models.load import LoadedModel
    from octavo.quantize.preflight import Plan
    from octavo.quantize.provenance import QuantizationReport
    from octavo.quantize.recipe import Recipe
    from octavo.quantize.statistics_cache import StatisticsCache

DEFAULT_MEASUREMENT = Measurement()


@dataclass(frozen=True, slots=True)
class Page:
    """A report of a quantized checkpoint as a self-contained HTML `file`; `beside` are other checkpoints to show in
    its plots, by their octavo.json. `speed`: also measure how fast the native executor serves the written files."""

    file: Path
    beside: tuple[str | Path, ...] = ()
    speed: bool = True

    def check(self) -> None:
        """Raises `InvalidField` or `CheckpointError` for what could not be written or shown, before any work."""
        from octavo.measure.compare.entry import open_entry
        from octavo.measure.page.html_report import check_page_file

        check_page_file(self.file)
        for checkpoint in self.beside:
            open_entry(checkpoint)

    def write(self, checkpoint: Path, progress: Progress, say: Say) -> None:
        from octavo.measure.compare.comparison import compare_checkpoints
        from octavo.measure.compare.entry import open_entry
        from octavo.measure.compare.speed import SpeedPlan
        from octavo.measure.page.html_report import write_page

        plan = SpeedPlan() if self.speed else None
        comparison = compare_checkpoints([str(checkpoint)], None, plan, progress=progress, say=say)
        comparison.entries += [open_entry(each) for each in self.beside]
        write_page(self.file, comparison, comparison.entries[0])
        say(f"report: {self.file}")


def quantize(
    model: str | Path,
    output: str | Path,
    *,
    calibration: CalibrationSources = None,
    samples: int = 32,
    sequence_length: int = 512,
    statistics: str | Path | None = None,
    measure: Measurement | None = DEFAULT_MEASUREMENT,
    page: Page | None = None,
    progress: Progress = lambda stage, done, total: None,
    say: Say = lambda line: print(line, file=sys.stderr),
    **recipe: Any,
) -> QuantizationReport:
    """Quantize `model` (directory, .gguf file or catalog name) into the directory `output`. `recipe` are the fields of
    `Recipe`: `method="gptq", bits=4, group=64`, ...

    Checks everything first, goes on where a killed run with the same arguments stopped, verifies the written file
    with another reader, measures it unless `measure` is None, leaves the report beside it as `octavo.json`, and writes
    a `page` for people if one is asked for.

    `calibration` is one source or several, each a path, `hf:ORG/NAME` or `built-in`, with a weight as in `a.txt@2`.
    `statistics` is what `calibrate` left ("auto": found or made in the cache): then the model is not run again.
    """
    from octavo.quantize.recipe import Recipe

    job = QuantizeJob(model, Path(output), Recipe.of(**recipe), progress, say)
    if page is not None:
        page.check()
    report = job.run(CalibrationText(calibration, samples, sequence_length), statistics, measure)
    if page is not None:
        page.write(job.output, progress, say)
    return report


def calibrate(
    model: str | Path,
    *,
    calibration: CalibrationSources = None,
    samples: int = 32,
    sequence_length: int = 512,
    output: Path | None = None,
    progress: Progress = lambda stage, done, total: None,
    say: Say = lambda line: print(line, file=sys.stderr),
) -> StatisticsCache:
    """Run `model` once over calibration text and keep its statistics in `output` (None: in the cache, by model and
    text), for `quantize(statistics=...)` and `fit`. A killed run goes on where it was."""
    from octavo.models.load import load_model
    from octavo.quantize import calibrate as room

    loaded = load_model(model)
    text = CalibrationText(calibration, samples, sequence_length)
    shown = functools.partial(progress, "calibrating")
    return room.calibrate(loaded, text.load(loaded, say), output, shown, say)


def fit(
    model: str | Path,
    output: str | Path,
    *,
    num_bytes: int | None = None,
    bits_per_weight: float | None = None,
    max_divergence: float | None = None,
    calibration: CalibrationSources = None,
    samples: int = 32,
    sequence_length: int = 512,
    statistics: Path | None = None,
    zero_points: bool = True,
    measure: Measurement | None = DEFAULT_MEASUREMENT,
    progress: Progress = lambda stage, done, total: None,
    say: Say = lambda line: print(line, file=sys.stderr),
    **recipe: Any,
) -> FitReport:
    """Quantize `model` with a scheme for every group of its modules: the least expected loss in a file of at most
    `num_bytes` (or `bits_per_weight`, everything counted), or the smallest file whose measured KL is at most
    `max_divergence` nats per token.

    `recipe` are a `Recipe`'s other fields. `zero_points` lets 2- and 3-bit modules have them. Statistics are kept in
    `statistics` (None: in the cache), and estimates with them: another budget begins where this one did.
    """
    from octavo.fit_job import FitJob
    from octavo.measure.fit import Budget
    from octavo.quantize.recipe import Recipe

    budget = Budget(num_bytes, bits_per_weight, max_divergence)
    text = CalibrationText(calibration, samples, sequence_length)
    job = FitJob(model, Path(output), text, Recipe.of(**recipe), measure, progress, say)
    return job.run(budget, zero_points, statistics)


def plan_quantization(
    model: str | Path, recipe: Recipe, samples: int = 32, sequence_length: int = 512, output: Path | None = None
) -> Plan:
    """The pre-flight alone: checks and estimates from shapes; no weight is read."""
    from octavo.models.load import open_model_checkpoint
    from octavo.models.registry import read_spec
    from octavo.quantize.preflight import preflight
    from octavo.weights.model_directory import check_target

    checkpoint = open_model_checkpoint(model)
    if output is not None:
        if output.absolute().resolve() == Path(checkpoint.source).absolute().resolve():
            raise InvalidField("output", str(output), "is the source itself; name another directory")
        check_target(output)
    return preflight(read_spec(checkpoint.config), checkpoint, recipe, samples * sequence_length)


def evaluate(
    model: str | Path,
    text: str | Path | None = None,
    *,
    against: str | Path | None = None,
    windows: int | None = None,
    window_tokens: int | None = None,
    rows: bool | None = None,
    served: bool = False,
    kv_dtype: str = "bfloat16",
    progress: Progress = lambda stage, done, total: None,
) -> QualityReport:
    """Perplexity of `model` on `text` (None: held-out part of the built-in text), and its distance to `against`.

    `windows` None is all of them; `window_tokens` None is 2048, or the model's context where that is shorter. `rows`
    joins lines by the WikiText protocol (None: for `*.raw` files). `served` measures `model` as the native executor
    computes it, keys and values in `kv_dtype`, instead of in float32.
    """
    from octavo.measure.evaluate import evaluate as measure_model
    from octavo.measure.windows import DEFAULT_WINDOW_TOKENS, read_evaluation_text
    from octavo.models.load import load_model

    source = read_evaluation_text(text, rows)
    loaded = load_model(model)
    base = None if against is None else load_model(against)
    return measure_model(
        loaded,
        source,
        base,
        window_tokens=window_tokens or min(DEFAULT_WINDOW_TOKENS, loaded.spec.max_position_embeddings),
        num_windows=windows,
        served=served,
        kv_dtype=kv_dtype,
        caveats=_caveats(base if base is not None else loaded),
        progress=lambda done, total: progress("measuring", done, total),
    )


def export(
    model: str | Path,
    output: str | Path,
    format: str,
    *,
    dtype: str | None = None,
    file_type: str | None = None,
    statistics: str | Path | None = None,
    overwrite: bool = False,
) -> ExportReport:
    """Write `model` in another format (`octavo.weights.formats.FORMATS`) and have another reader confirm it.

    Nothing is lost where the format can hold the model; where it cannot, `InvalidField` names the module and the reason
    before anything is written. With `dtype` (float32, bfloat16, float16) such modules are written dense instead; for
    format hf it is that of all numbers. `file_type` (gguf alone): round to that ggml type, errors weighed by the
    inputs of `statistics` (what `calibrate` left).
    """
    from octavo.export_job import ExportJob

    cache = None if statistics is None else Path(statistics)
    return ExportJob(model, Path(output), format, dtype, file_type, overwrite, cache).run()


def compare(
    checkpoints: Sequence[str | Path],
    text: str | Path | None = None,
    *,
    windows: int | None = 4,
    window_tokens: int | None = None,
    against: str | Path | None = None,
    quality: bool = True,
    speed: bool = True,
    rounds: int = 3,
    threads: int | None = None,
    html: Path | None = None,
    progress: Progress = lambda stage, done, total: None,
    say: Say = lambda line: print(line, file=sys.stderr),
) -> Comparison:
    """Several checkpoints side by side, measured from their files by one protocol; see `compare_checkpoints`.

    `html` is a file for a page of it all, self-contained; it is written for an interrupted comparison too.
    """
    from octavo.measure.compare.comparison import compare_checkpoints
    from octavo.measure.compare.quality import QualityPlan
    from octavo.measure.compare.speed import SpeedPlan
    from octavo.measure.page.html_report import check_page_file, write_page

    if html is not None:
        check_page_file(html)
    base = None if against is None else str(against)
    quality_plan = QualityPlan(None if text is None else str(text), windows, window_tokens, base) if quality else None
    speed_plan = SpeedPlan(num_rounds=rounds) if speed else None
    models = [str(each) for each in checkpoints]
    comparison = compare_checkpoints(models, quality_plan, speed_plan, threads, progress, say)
    if html is not None:
        write_page(html, comparison)
        say(f"page: {html}")
    return comparison


def _caveats(loaded: LoadedModel) -> list[str]:
    """What must be said about losses against this model."""
    from octavo.quantize.preflight import source_caveats

    spec, checkpoint = loaded.spec, loaded.checkpoint
    linears = [f"{name}.weight" for block in range(spec.num_layers) for name in spec.linear_names(block)]
    return source_caveats(checkpoint, linears, {name: checkpoint.shape(name) for name in linears})
