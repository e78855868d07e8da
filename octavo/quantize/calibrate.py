"""A model's statistics on calibration text: made once, found again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.core.errors import InvalidField
from octavo.core.units import format_bytes
from octavo.quantize.journal import source_key
from octavo.quantize.recipe import Recipe
from octavo.quantize.statistics_cache import (
    Progress,
    StatisticsCache,
    StatisticsKey,
    check_room,
    collect_statistics,
    statistics_bytes,
)

if TYPE_CHECKING:
    from octavo.models.load import LoadedModel
    from octavo.quantize.calibration import Calibration
    from octavo.weights.checkpoint import Checkpoint

#: Said wherever something was quantized on cached statistics.
NOT_SEQUENTIAL = (
    "rounded on cached statistics of the source model itself: no linear was calibrated on the outputs of rounded "
    "predecessors (true-sequential, the default without --statistics)"
)


def calibrate(
    loaded: LoadedModel,
    calibration: Calibration,
    directory: Path | None = None,
    progress: Progress = lambda done, total: None,
    say: Callable[[str], None] = lambda line: None,
) -> StatisticsCache:
    """Run the source model over `calibration` once and keep its statistics in `directory` (None: in the cache, by
    model and tokens). What is there already is not computed again. Raises `InvalidField`, `CapacityError`."""
    key = StatisticsKey(model_key(loaded.checkpoint), calibration.sha256, loaded.spec.num_layers)
    cache = StatisticsCache.create(key, calibration.to_dict(), directory)
    if cache.is_complete:
        say(f"statistics: {cache.directory} ({format_bytes(cache.num_bytes)}), found; the model is not run")
        return cache
    size = statistics_bytes(loaded.spec)
    check_room(cache.directory, size)
    resumed = f"; going on after {cache.num_finished_blocks} blocks" if cache.num_finished_blocks else ""
    say(f"statistics: {cache.directory}, about {format_bytes(size)} on disk{resumed}")
    collect_statistics(loaded.model, calibration, cache, progress)
    return cache


def model_key(checkpoint: Checkpoint) -> str:
    """Identity of a model's files (see `journal.source_key`)."""
    source = Path(checkpoint.source)
    return source_key([source] if source.is_file() else [file for file in source.iterdir() if file.is_file()])


def check_takes_statistics(recipe: Recipe) -> None:
    """Raise `InvalidField` for a recipe that must run the model, whatever is known about it."""
    reasons = {
        f"method {recipe.method} trains on hidden states": recipe.method not in ("gptq", "rtn"),
        f"{', '.join(recipe.transforms)} changes what the linears read": bool(recipe.transforms),
        "a KV cache's scales come from running the model": recipe.kv_cache is not None,
        "distillation runs the model": recipe.distill_steps > 0,
    }
    for reason, applies in reasons.items():
        if applies:
            raise InvalidField("statistics", str(recipe), f"{reason}; give --calibration instead")
