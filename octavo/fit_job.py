"""One run of `fit`: a table of options, a budget, the file it buys."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.core.errors import InvalidField
from octavo.jobs import CalibrationText, Measurement, Progress, QuantizeJob, Say

if TYPE_CHECKING:
    from octavo.measure.fit import Budget, Fit
    from octavo.measure.fit_search import Tried
    from octavo.measure.fit_table import FitTable
    from octavo.quantize.provenance import QuantizationReport
    from octavo.quantize.recipe import Recipe


@dataclass(frozen=True, slots=True)
class FitReport:
    """What was chosen, the file that was made of it, and, for a budget of divergence, every file that was tried."""

    fit: Fit
    quantization: QuantizationReport
    tried: tuple[Tried, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return self.quantization.to_dict()

    def __str__(self) -> str:
        lines = [str(self.fit), str(self.quantization)]
        lines += [
            f"tried: {each.fit.file_bytes:,} bytes, KL expected {each.fit.expected_divergence:.4f}, "
            f"measured {each.divergence:.4f}"
            for each in self.tried
        ]
        return "\n".join([*lines, self.quantization.quality_text or ""]).rstrip()


class FitJob:
    """`recipe` is all but the schemes, which the fit chooses."""

    def __init__(
        self,
        model: str | Path,
        output: Path,
        text: CalibrationText,
        recipe: Recipe,
        measure: Measurement | None,
        progress: Progress,
        say: Say,
    ) -> None:
        self.model, self.output, self.text, self.recipe = model, output, text, recipe
        self.measure, self.progress, self.say = measure, progress, say

    def run(self, budget: Budget, zero_points: bool, statistics: Path | None) -> FitReport:
        """Everything is checked before the model is run."""
        from octavo.api import plan_quantization

        self._check(budget)
        plan_quantization(
            self.model, replace(self.recipe, group=None), self.text.samples, self.text.sequence_length, self.output
        )
        table = self._table(zero_points, statistics)
        self.say(str(table.check))
        if budget.max_divergence is not None:
            return self._search(table, budget.max_divergence)
        fit = table.fit(budget.file_bytes(table.num_weights))
        report = self._make(fit, self.output)
        return FitReport(fit, report)

    def _check(self, budget: Budget) -> None:
        from octavo.quantize.recipe import Recipe

        default = Recipe()
        for name in ("bits", "group", "symmetric", "scheme", "embedding_bits", "allocation"):
            if getattr(self.recipe, name) != getattr(default, name):
                raise InvalidField(name, getattr(self.recipe, name), "fit chooses the schemes; leave this out")
        if "rotate" in self.recipe.transforms:
            expected = "a fit's estimates are of the model as it is, and a rotated one is another; use smooth or awq"
            raise InvalidField("transforms", self.recipe.transforms, expected)
        if budget.max_divergence is not None and self.measure is None:
            raise InvalidField("measure", None, "a budget of divergence is checked on the written file")

    def _table(self, zero_points: bool, statistics: Path | None) -> FitTable:
        """Nothing of the model stays in memory afterwards."""
        from octavo.measure.fit_estimates import make_fit_table
        from octavo.models.load import load_model
        from octavo.quantize.calibrate import calibrate

        loaded = load_model(self.model)
        calibration = self.text.load(loaded, self.say)
        cache = calibrate(
            loaded, calibration, statistics, lambda done, total: self.progress("calibrating", done, total), self.say
        )
        return make_fit_table(loaded, calibration, cache, self.recipe, zero_points, self.progress)

    def _make(self, fit: Fit, directory: Path) -> QuantizationReport:
        """The file of `fit`, verified, measured, and held against its budget."""
        from octavo.quantize.recipe import Recipe

        self.say(f"fit: {fit.summary}")
        recipe = Recipe.of(**{**self.recipe.to_dict(), "allocation": fit.allocation})
        text = (
            self.text
            if recipe.needs_calibration
            else CalibrationText(None, self.text.samples, self.text.sequence_length)
        )
        report = QuantizeJob(self.model, directory, recipe, self.progress, self.say).run(text, None, self.measure)
        if report.output_bytes > fit.budget_bytes:
            raise InvalidField("budget", fit.budget_bytes, f"the written file has {report.output_bytes} bytes")
        report.fit = fit.to_dict()
        report.write(directory)
        return report

    def _search(self, table: FitTable, max_divergence: float) -> FitReport:
        """Files beside the output, of which the smallest that is good enough takes its place."""
        from octavo.measure.fit_search import search_budget

        reports: dict[int, QuantizationReport] = {}

        def measure(fit: Fit) -> float:
            report = reports[fit.file_bytes] = self._make(fit, self._candidate(fit))
            assert report.quality is not None
            divergence = float(report.quality["comparison"]["mean_divergence"])
            self.say(f"{fit.file_bytes:,} bytes: KL {divergence:.4f} of {max_divergence:.4f} nats")
            return divergence

        try:
            tried = search_budget(table, max_divergence, measure)
            best = tried[-1].fit
            report = reports[best.file_bytes]
            report.output = self.output.name
            report.write(self._candidate(best))
            if self.output.exists():
                shutil.rmtree(self.output)
            self._candidate(best).rename(self.output)
        finally:
            for number in reports:
                shutil.rmtree(self.output.with_name(f"{self.output.name}.fit-{number}"), ignore_errors=True)
        return FitReport(best, report, tuple(tried))

    def _candidate(self, fit: Fit) -> Path:
        return self.output.with_name(f"{self.output.name}.fit-{fit.file_bytes}")
