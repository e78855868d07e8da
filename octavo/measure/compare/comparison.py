"""Measuring several checkpoints: quality one after another, speed in interleaved rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any

from octavo.core.errors import InvalidField
from octavo.measure.compare.entry import MEASURED, CheckpointEntry, open_entry
from octavo.measure.compare.pareto import pareto_front
from octavo.measure.compare.quality import QualityPlan, common_window_tokens, have_same_protocol, is_by_protocol
from octavo.measure.compare.speed import Speed, SpeedPlan
from octavo.measure.compare.worker_process import WorkerFailed, WorkerProcess

#: Called with (what is being done, finished parts, all parts).
Progress = Callable[[str, int, int], None]
Say = Callable[[str], None]


@dataclass(slots=True)
class Comparison:
    """Entries in the order they were named; `against` is the base of every divergence. `notes` hold for all."""

    entries: list[CheckpointEntry]
    against: str | None = None
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False

    def comparable(self) -> list[CheckpointEntry]:
        """Those whose quality was measured by the protocol, and against the base, of the first that has any: only
        their figures may stand beside one another."""
        measured = [entry for entry in self.entries if entry.quality is not None]
        return [entry for entry in measured if have_same_protocol(entry, measured[0])]

    def not_comparable(self) -> list[str]:
        """Why entries are on no front and in no plot, a line each; none: they all are."""
        shown = self.comparable()
        left_out = [entry for entry in self.entries if not any(entry is each for each in shown)]
        why = {True: "its quality was not measured", False: "its quality was measured by another protocol or base"}
        return [f"{entry.name} is in no plot of quality: {why[entry.quality is None]}" for entry in left_out]

    @property
    def loss_name(self) -> str:
        """What the fronts are in: KL where every comparable entry has it, else perplexity."""
        shown = self.comparable()
        return "KL" if shown and all(entry.divergence is not None for entry in shown) else "perplexity"

    def loss(self, entry: CheckpointEntry) -> float | None:
        return entry.divergence if self.loss_name == "KL" else entry.perplexity

    def by_size(self) -> list[CheckpointEntry]:
        """Entries that no other beats in both bytes and loss, smallest first."""
        front = self._front(lambda entry: entry.weight_bytes)
        return sorted(front, key=lambda entry: entry.weight_bytes)

    def by_speed(self) -> list[CheckpointEntry]:
        """Entries that no other beats in both tokens a second and loss, fastest first."""
        front = self._front(lambda entry: None if entry.speed is None else -entry.speed.decode_tokens_per_second)
        return sorted(front, key=lambda entry: -entry.speed.decode_tokens_per_second if entry.speed else 0.0)

    def _front(self, cost: Callable[[CheckpointEntry], float | None]) -> list[CheckpointEntry]:
        points = [(entry, (cost(entry), self.loss(entry))) for entry in self.comparable()]
        known = [(entry, (a, b)) for entry, (a, b) in points if a is not None and b is not None]
        return [known[index][0] for index in pareto_front([costs for _, costs in known])]

    def to_dict(self) -> dict[str, Any]:
        small, fast = self.by_size(), self.by_speed()
        return {
            "against": self.against,
            "loss": self.loss_name,
            "checkpoints": [
                {
                    **entry.to_dict(),
                    "pareto_size": any(entry is one for one in small),
                    "pareto_speed": any(entry is one for one in fast),
                }
                for entry in self.entries
            ],
            "notes": self.notes,
            "interrupted": self.interrupted,
        }

    def __str__(self) -> str:
        from octavo.measure.compare.table import comparison_lines

        return "\n".join(comparison_lines(self))


def compare_checkpoints(
    models: Sequence[str],
    quality: QualityPlan | None,
    speed: SpeedPlan | None,
    threads: int | None = None,
    progress: Progress = lambda stage, done, total: None,
    say: Say = lambda line: None,
) -> Comparison:
    """Measure every checkpoint's files by one protocol, each in a process of its own; None leaves a part out, and
    figures of its octavo.json stand where they are by the same protocol.

    A checkpoint that cannot be measured keeps its line with the reason. Ctrl-C ends the work and keeps what is
    measured (`interrupted`). Raises `InvalidField` for a plan or a name that cannot be honoured, before any work.
    """
    if not models or len(set(models)) < len(models):
        raise InvalidField("checkpoints", list(models), "name each checkpoint once, at least one")
    if quality is not None:
        quality.check()
    comparison = Comparison([open_entry(model) for model in models], None if quality is None else quality.against)
    _tell_apart(comparison.entries, models)
    try:
        if quality is not None:
            _measure_quality(comparison, models, quality, progress, say)
        if speed is not None:
            _measure_speed(comparison, models, speed, threads, progress)
    except KeyboardInterrupt:
        comparison.interrupted = True
        comparison.notes.append("Interrupted: what had not been measured is missing.")
    return comparison


def _tell_apart(entries: Sequence[CheckpointEntry], models: Sequence[str]) -> None:
    """Directories may have equal last names; then the whole names are shown."""
    if len({entry.name for entry in entries}) < len(entries):
        for entry, model in zip(entries, models, strict=True):
            entry.name = model


def _measure_quality(
    comparison: Comparison, models: Sequence[str], plan: QualityPlan, progress: Progress, say: Say
) -> None:
    window_tokens = plan.window_tokens or common_window_tokens([*models, *filter(None, [plan.against])])
    for entry, model in zip(comparison.entries, models, strict=True):
        if is_by_protocol(entry, model, plan, window_tokens):
            say(f"{entry.name}: its octavo.json was measured by this protocol; figures taken from there")
            continue
        entry.quality = entry.quality_origin = None
        arguments = {**plan.to_dict(), "window_tokens": window_tokens, "model": model}
        try:
            with WorkerProcess(entry.name) as worker:
                shown = _stage(progress, f"measuring {entry.name}")
                entry.quality = worker.ask("evaluate", shown, arguments=arguments)
                entry.quality_origin = MEASURED
        except WorkerFailed as failure:
            _note(entry, "quality", failure, say)


def _measure_speed(
    comparison: Comparison, models: Sequence[str], plan: SpeedPlan, threads: int | None, progress: Progress
) -> None:
    """Every round runs each checkpoint once, so that a machine that slows down slows all."""
    if not _fit_together(comparison.entries):
        comparison.notes.append(
            "The checkpoints do not fit into memory together: speed was measured one after another, not interleaved."
        )
        for entry, model in zip(comparison.entries, models, strict=True):
            _run_rounds([(entry, model)], plan, threads, progress)
        return
    _run_rounds(list(zip(comparison.entries, models, strict=True)), plan, threads, progress)


def _run_rounds(
    pairs: Sequence[tuple[CheckpointEntry, str]], plan: SpeedPlan, threads: int | None, progress: Progress
) -> None:
    with ExitStack() as stack:
        running: list[tuple[CheckpointEntry, WorkerProcess]] = []
        for entry, model in pairs:
            worker = stack.enter_context(WorkerProcess(entry.name))
            try:
                worker.ask("load", model=model, plan=asdict(plan), threads=threads)
                running.append((entry, worker))
            except WorkerFailed as failure:
                _note(entry, "speed", failure, lambda line: None)
        spent = {id(entry): 0.0 for entry, _ in running}
        for done in range(plan.num_rounds):
            for entry, worker in running:
                if done and spent[id(entry)] > plan.limit_seconds * done / (done + 1):
                    continue
                spent[id(entry)] += worker.ask("round")
                entry.speed = Speed(**worker.ask("result"))
            progress("speed", done + 1, plan.num_rounds)


def _fit_together(entries: Sequence[CheckpointEntry]) -> bool:
    """Whether all processes at once take less than half of the memory that is available."""
    import psutil

    needed = sum(2 * entry.weight_bytes + 600 * 2**20 for entry in entries)
    return needed < psutil.virtual_memory().available / 2


def _stage(progress: Progress, stage: str) -> Callable[[int, int], None]:
    return lambda done, total: progress(stage, done, total)


def _note(entry: CheckpointEntry, what: str, failure: WorkerFailed, say: Say) -> None:
    entry.problems.append(f"{what} not measured: {failure}")
    say(f"{entry.name}: {entry.problems[-1]}")
