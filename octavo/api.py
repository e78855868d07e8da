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

#: Called with (what is being done, finished parts, all parts).
Progress = Callable[[str, int, int], None]
#: Called with a line the user should see.
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Measurement:
    """How `quantize` measures the exported file; the fields mean what they do in `evaluate`."""

    text: str | Path | None = None
    num_windows: int = 4
    window_tokens: int | None = None


DEFAULT_MEASUREMENT = Measurement()


def quantize(
    model: str | Path,
    output: str | Path,
    *,
    calibration: str | Path | None = None,
    samples: int = 32,
    sequence_length: int = 512,
    measure: Measurement | None = DEFAULT_MEASUREMENT,
    progress: Progress = lambda stage, done, total: None,
    say: Say = lambda line: print(line, file=sys.stderr),
    **recipe: Any,
) -> QuantizationReport:
    """Quantize `model` (directory, .gguf file or catalog name) into the directory `output`. `recipe` are the fields of
    `Recipe`: `method="gptq", bits=4, group=64`, ...

    Checks everything first, goes on where a killed run with the same arguments stopped, verifies the written file
    with another reader, measures it unless `measure` is None, and leaves the report beside it as `octavo.json`.
    """
    from octavo.quantize.recipe import Recipe

    job = _Job(model, Path(output), Recipe.of(**recipe), progress, say)
    return job.run(calibration, samples, sequence_length, measure)


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


class _Job:
    """One run of `quantize`, stage by stage."""

    def __init__(self, model: str | Path, output: Path, recipe: Recipe, progress: Progress, say: Say) -> None:
        self.model, self.output, self.recipe = model, output, recipe
        self.progress, self.say = progress, say
        self.seconds: dict[str, float] = {}

    def run(
        self, source: str | Path | None, samples: int, length: int, measure: Measurement | None
    ) -> QuantizationReport:
        plan = plan_quantization(self.model, self.recipe, samples, length, self.output)
        self.say(f"pre-flight: {self.recipe}; {plan}")
        for note in (*plan.caveats, *plan.notes):
            self.say(f"note: {note}")
        self._check_measurement(measure)
        report, journal = self._quantize(plan, source, samples, length)
        if measure is not None:
            quality = self._timed("measuring", lambda: self._measure(measure))
            report.quality, report.quality_text = quality.to_dict(), str(quality)
        report.seconds = self.seconds
        report.write(self.output)
        journal.remove()
        return report

    def _quantize(
        self, plan: Plan, source: str | Path | None, samples: int, length: int
    ) -> tuple[QuantizationReport, Journal]:
        """Up to a verified file on disk; nothing of the model stays in memory."""
        from octavo.models.load import load_model
        from octavo.quantize.export import export
        from octavo.quantize.pipeline import quantize_model

        loaded = self._timed("loading", lambda: load_model(self.model))
        calibration = self._calibrate(loaded, source, samples, length)
        journal = self._open_journal(loaded, calibration)
        shown = functools.partial(self.progress, "quantizing")
        quantized = self._timed(
            "quantizing", lambda: quantize_model(loaded.model, self.recipe, calibration, journal, shown)
        )
        written, verification = self._timed(
            "writing",
            lambda: export(self.output, quantized.tensors, loaded.checkpoint, loaded.model.spec, loaded.tokenizer),
        )
        report = self._report(plan, calibration, quantized.reports, written, verification.verdict)
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

    def _calibrate(
        self, loaded: LoadedModel, source: str | Path | None, samples: int, length: int
    ) -> Calibration | None:
        from octavo.quantize.calibration import load_calibration

        if not self.recipe.needs_calibration:
            if source is not None:
                raise InvalidField("calibration", str(source), "rtn uses no calibration text; use method gptq")
            return None
        calibration = load_calibration(loaded.tokenizer, source, samples, length)
        self.say(
            f"calibration: {calibration.num_tokens:,} tokens of {calibration.source} in {len(calibration.windows)} "
            f"windows of {length}; {calibration.num_unused_tokens:,} tokens not used"
        )
        widest = max(loaded.spec.hidden_size, loaded.spec.widest_mlp)
        if len(calibration.windows) < samples:
            self.say(f"WARNING: the text fills {len(calibration.windows)} of the {samples} windows asked for")
        if calibration.num_tokens < 4 * widest:
            self.say(f"WARNING: {calibration.num_tokens} calibration tokens are few for {widest} inputs")
        return calibration

    def _open_journal(self, loaded: LoadedModel, calibration: Calibration | None) -> Journal:
        from octavo.quantize.journal import Journal, source_key
        from octavo.quantize.provenance import machine, versions

        source = Path(loaded.checkpoint.source)
        files = [source] if source.is_file() else [file for file in source.iterdir() if file.is_file()]
        key = {
            "source": source_key(files),
            "recipe": self.recipe.to_dict(),
            "calibration": None if calibration is None else calibration.to_dict(),
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
        self, plan: Plan, calibration: Calibration | None, modules: list[Any], written: Any, verdict: str
    ) -> QuantizationReport:
        from octavo.quantize.provenance import QuantizationReport

        return QuantizationReport(
            source=str(self.model),
            output=self.output.name,
            recipe=self.recipe,
            modules=modules,
            calibration=None if calibration is None else calibration.to_dict(),
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
