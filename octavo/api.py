"""The front door: `octavo.quantize(...)` and `octavo.evaluate(...)`, the functions behind the commands."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.core.errors import InvalidField

if TYPE_CHECKING:
    from octavo.measure.compare.comparison import Comparison
    from octavo.measure.report import QualityReport
    from octavo.models.load import LoadedModel
    from octavo.quantize.calibration import Calibration
    from octavo.quantize.journal import Journal
    from octavo.quantize.preflight import Plan
    from octavo.quantize.provenance import QuantizationReport
    from octavo.quantize.recipe import Recipe
    from octavo.quantize.statistics_cache import StatisticsCache

#: Called with (what is being done, finished parts, all parts).
Progress = Callable[[str, int, int], None]
#: Called with a line the user should see.
Say = Callable[[str], None]
#: One source of calibration text or several; None is the built-in text.
CalibrationSources = str | Path | Sequence[str | Path] | None


@dataclass(frozen=True, slots=True)
class Measurement:
    """How `quantize` measures the exported file; the fields mean what they do in `evaluate`."""

    text: str | Path | None = None
    num_windows: int = 4
    window_tokens: int | None = None


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
#: Statistics that are found in the cache, or made and left there.
AUTO = "auto"


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

    job = _Job(model, Path(output), Recipe.of(**recipe), progress, say)
    if page is not None:
        page.check()
    report = job.run(_Text(calibration, samples, sequence_length), statistics, measure)
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
    text = _Text(calibration, samples, sequence_length)
    shown = functools.partial(progress, "calibrating")
    return room.calibrate(loaded, text.load(loaded, say), output, shown, say)


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


@dataclass(frozen=True, slots=True)
class _Text:
    """Calibration text as it was asked for."""

    sources: CalibrationSources
    samples: int
    sequence_length: int

    def load(self, loaded: LoadedModel, say: Say) -> Calibration:
        """Read and pack it; what is in it, and what is wrong with it, is said."""
        from octavo.quantize.calibration import load_calibration

        calibration = load_calibration(loaded.tokenizer, self.sources, self.samples, self.sequence_length)
        for counts in calibration.sources:
            say(f"calibration: {counts}")
        for line in calibration.warnings(max(loaded.spec.hidden_size, loaded.spec.widest_mlp)):
            say(f"WARNING: {line}")
        return calibration


class _Job:
    """One run of `quantize`, stage by stage."""

    def __init__(self, model: str | Path, output: Path, recipe: Recipe, progress: Progress, say: Say) -> None:
        self.model, self.output, self.recipe = model, output, recipe
        self.progress, self.say = progress, say
        self.seconds: dict[str, float] = {}

    def run(self, text: _Text, statistics: str | Path | None, measure: Measurement | None) -> QuantizationReport:
        self._check_text(text, statistics)
        plan = plan_quantization(self.model, self.recipe, text.samples, text.sequence_length, self.output)
        self.say(f"pre-flight: {self.recipe}; {plan}")
        for note in (*plan.caveats, *plan.notes):
            self.say(f"note: {note}")
        self._check_measurement(measure)
        report, journal = self._quantize(plan, text, statistics)
        if measure is not None:
            quality = self._timed("measuring", lambda: self._measure(measure))
            report.quality, report.quality_text = quality.to_dict(), str(quality)
        report.seconds = self.seconds
        report.write(self.output)
        journal.remove()
        return report

    def _quantize(self, plan: Plan, text: _Text, statistics: str | Path | None) -> tuple[QuantizationReport, Journal]:
        """Up to a verified file on disk; nothing of the model stays in memory."""
        from octavo.models.load import load_model
        from octavo.quantize.export import export, stored_model
        from octavo.quantize.pipeline import quantize_model

        loaded = self._timed("loading", lambda: load_model(self.model))
        calibration, cache = self._calibrate(loaded, text, statistics)
        described = _described(calibration, cache)
        journal = self._open_journal(loaded, described)
        shown = functools.partial(self.progress, "quantizing")
        quantized = self._timed(
            "quantizing", lambda: quantize_model(loaded.model, self.recipe, calibration, journal, shown, cache)
        )
        written, verification = self._timed(
            "writing",
            lambda: export(
                self.output, stored_model(quantized, loaded.checkpoint, loaded.model.spec, loaded.tokenizer)
            ),
        )
        report = self._report(plan, described, quantized.reports, written, verification.verdict)
        report.num_resumed_blocks = quantized.num_resumed_blocks
        return report, journal

    def _timed(self, stage: str, work: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        result = work()
        self.seconds[stage] = time.perf_counter() - started
        return result

    def _check_measurement(self, measure: Measurement | None) -> None:
        """A wrong file name should not be noticed after the work is done."""
        if measure is not None:
            from octavo.measure.windows import read_evaluation_text

            read_evaluation_text(measure.text)

    def _check_text(self, text: _Text, statistics: str | Path | None) -> None:
        """Nothing that was asked for may be ignored."""
        if statistics is not None:
            from octavo.quantize.calibrate import check_takes_statistics

            check_takes_statistics(self.recipe)
            if text.sources and str(statistics) != AUTO:
                raise InvalidField("calibration", text.sources, f"{statistics} have a text already; give one")
        elif text.sources and not self.recipe.needs_calibration:
            raise InvalidField("calibration", text.sources, "rtn uses no calibration text; use method gptq")

    def _calibrate(
        self, loaded: LoadedModel, text: _Text, statistics: str | Path | None
    ) -> tuple[Calibration | None, StatisticsCache | None]:
        """The text, or statistics instead of it; neither where the recipe needs none."""
        if statistics is None:
            return (text.load(loaded, self.say) if self.recipe.needs_calibration else None), None
        from octavo.quantize.calibrate import calibrate, model_key
        from octavo.quantize.statistics_cache import StatisticsCache

        if str(statistics) != AUTO:
            return None, StatisticsCache.open(Path(statistics), model_key(loaded.checkpoint))
        shown = functools.partial(self.progress, "calibrating")
        calibration = text.load(loaded, self.say)
        return None, self._timed("calibrating", lambda: calibrate(loaded, calibration, None, shown, self.say))

    def _open_journal(self, loaded: LoadedModel, calibration: dict[str, Any] | None) -> Journal:
        from octavo.quantize.calibrate import model_key
        from octavo.quantize.journal import Journal
        from octavo.quantize.provenance import machine, versions

        key = {
            "source": model_key(loaded.checkpoint),
            "recipe": self.recipe.to_dict(),
            "calibration": calibration,
            "versions": versions(),
            "machine": machine(),
        }
        journal = Journal(self.output.with_name(f"{self.output.name}.journal"), key)
        if journal.discarded is not None:
            self.say(f"journal {journal.directory} is of another run ({journal.discarded}): starting over")
        if journal.num_finished_blocks:
            self.say(f"journal {journal.directory}: resuming after {journal.num_finished_blocks} finished blocks")
        return journal

    def _report(
        self, plan: Plan, calibration: dict[str, Any] | None, modules: list[Any], written: Any, verdict: str
    ) -> QuantizationReport:
        from octavo.quantize.provenance import QuantizationReport

        return QuantizationReport(
            source=str(self.model),
            output=self.output.name,
            recipe=self.recipe,
            modules=modules,
            calibration=calibration,
            source_bytes=plan.source_bytes,
            output_bytes=written.total_bytes,
            bits_per_weight=written.true_bits_per_weight,
            verification=verdict,
            seconds={},
            caveats=list(plan.caveats),
            notes=list(written.notes),
        )

    def _measure(self, measure: Measurement) -> QualityReport:
        """The exported file, reloaded from disk, against the source."""
        return evaluate(
            self.output,
            measure.text,
            against=self.model,
            windows=measure.num_windows,
            window_tokens=measure.window_tokens,
            progress=self.progress,
        )


def _described(calibration: Calibration | None, cache: StatisticsCache | None) -> dict[str, Any] | None:
    """What a report says a model was calibrated on."""
    if cache is not None:
        from octavo.quantize.calibrate import NOT_SEQUENTIAL

        return {**cache.calibration, "statistics": NOT_SEQUENTIAL}
    return None if calibration is None else calibration.to_dict()
