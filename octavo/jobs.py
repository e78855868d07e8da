"""The runs behind the front door, stage by stage; everything heavy is imported where it is used."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.core.errors import InvalidField, OctavoError

if TYPE_CHECKING:
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
#: Statistics that are found in the cache, or made and left there.
AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Measurement:
    """How `quantize` measures the exported file; the fields mean what they do in `evaluate`."""

    text: str | Path | None = None
    num_windows: int = 4
    window_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class CalibrationText:
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


class QuantizeJob:
    """One run of `quantize`, stage by stage."""

    def __init__(self, model: str | Path, output: Path, recipe: Recipe, progress: Progress, say: Say) -> None:
        self.model, self.output, self.recipe = model, output, recipe
        self.progress, self.say = progress, say
        self.seconds: dict[str, float] = {}
        self._journal: Journal | None = None

    def run(
        self, text: CalibrationText, statistics: str | Path | None, measure: Measurement | None
    ) -> QuantizationReport:
        """Raises what its stages raise; where that ends the work in the middle, what is kept is said."""
        try:
            return self._run(text, statistics, measure)
        except (KeyboardInterrupt, OctavoError):
            if self._journal is not None:
                kept = f"{self._journal.num_finished_blocks} finished blocks are kept in {self._journal.directory}"
                self.say(f"{kept}; the same command goes on from there")
            raise

    def _run(
        self, text: CalibrationText, statistics: str | Path | None, measure: Measurement | None
    ) -> QuantizationReport:
        from octavo.api import plan_quantization

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
        self._journal = None
        return report

    def _quantize(
        self, plan: Plan, text: CalibrationText, statistics: str | Path | None
    ) -> tuple[QuantizationReport, Journal]:
        """Up to a verified file on disk; nothing of the model stays in memory."""
        from octavo.models.load import load_model
        from octavo.quantize.export import export, stored_model
        from octavo.quantize.pipeline import quantize_model

        loaded = self._timed("loading", lambda: load_model(self.model))
        calibration, cache = self._calibrate(loaded, text, statistics)
        described = _described(calibration, cache)
        journal = self._open_journal(loaded, described)
        shown, distilling = (functools.partial(self.progress, stage) for stage in ("quantizing", "distilling"))
        quantized = self._timed(
            "quantizing",
            lambda: quantize_model(loaded.model, self.recipe, calibration, journal, shown, cache, distilling),
        )
        written, verification = self._timed(
            "writing",
            lambda: export(
                self.output, stored_model(quantized, loaded.checkpoint, loaded.model.spec, loaded.tokenizer)
            ),
        )
        report = self._report(plan, described, quantized.reports, written, verification.verdict)
        report.num_resumed_blocks = quantized.num_resumed_blocks
        if quantized.distilled is not None:
            report.notes.append(str(quantized.distilled))
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

    def _check_text(self, text: CalibrationText, statistics: str | Path | None) -> None:
        """Nothing that was asked for may be ignored."""
        if statistics is not None:
            from octavo.quantize.calibrate import check_takes_statistics

            check_takes_statistics(self.recipe)
            if text.sources and str(statistics) != AUTO:
                raise InvalidField("calibration", text.sources, f"{statistics} have a text already; give one")
        elif text.sources and not self.recipe.needs_calibration:
            raise InvalidField("calibration", text.sources, "rtn uses no calibration text; use method gptq")

    def _calibrate(
        self, loaded: LoadedModel, text: CalibrationText, statistics: str | Path | None
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
        journal = self._journal = Journal(self.output.with_name(f"{self.output.name}.journal"), key)
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
        from octavo.api import evaluate

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
