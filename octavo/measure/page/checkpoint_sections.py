"""What a page tells of one checkpoint, from its entry alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from octavo.core.units import format_bytes, format_seconds
from octavo.measure.compare.entry import CheckpointEntry
from octavo.measure.compare.table import protocol_text
from octavo.measure.page import html
from octavo.measure.page.axis import Axis
from octavo.measure.page.charts import Panel, legend, line_panels, stacked_bars
from octavo.measure.page.module_errors import errors_by_role

#: Columns of the table of modules: heading, field of a `ModuleReport`. Fields that no module has are left out.
_MODULE_FIELDS = (
    ("method", "method"), ("scheme", "scheme"), ("transforms", "transforms"), ("shape", "shape"),
    ("tokens", "num_tokens"), ("lent tokens", "num_lent_tokens"), ("damping", "damping"),
    ("dead inputs", "num_dead_inputs"), ("error, nearest", "rtn_error"), ("error, written", "error"),
    ("fallback", "fallback"),
)  # fmt: skip


def checkpoint_sections(entry: CheckpointEntry, plots: str) -> str:
    """Figures, how it was made, `plots` (HTML) with other checkpoints, errors by layer, bytes by part, modules."""
    parts = [
        html.tiles(list(_tiles(entry))),
        html.caveats(all_caveats(entry)),
        html.section("How it was made and measured", html.facts(list(_facts(entry)))),
        plots,
        _error_section(entry),
        _size_section(entry),
        _module_section(entry),
    ]
    return "\n".join(filter(None, parts))


def all_caveats(entry: CheckpointEntry) -> list[str]:
    """Everything that must be said beside this checkpoint's figures."""
    record, quality = entry.record or {}, entry.quality or {}
    lines = [*record.get("caveats", []), *quality.get("caveats", []), *record.get("notes", []), *entry.problems]
    fallbacks = record.get("fallbacks") or []
    if fallbacks:
        lines.append(f"Not by the method that was asked for, see the table of modules: {', '.join(fallbacks)}.")
    return list(dict.fromkeys(lines))


def _tiles(entry: CheckpointEntry) -> Iterator[str]:
    source_bytes = ((entry.record or {}).get("bytes") or {}).get("source")
    before = f"from {format_bytes(source_bytes)}, {entry.weight_bytes / source_bytes:.0%}" if source_bytes else ""
    yield html.tile("size", format_bytes(entry.weight_bytes), before)
    yield html.tile("bits per weight", f"{entry.bits_per_weight:.2f}", "everything in the files counted")
    if entry.quality is not None:
        comparison = entry.quality.get("comparison")
        base = f"{comparison['base_perplexity']:.3f} before" if comparison else ""
        yield html.tile("perplexity", f"{entry.quality['perplexity']:.3f}", base)
        if comparison:
            low, high = comparison["mean_divergence_interval"]
            yield html.tile(
                "KL divergence", f"{comparison['mean_divergence']:.4f}", f"nats/token, 95 %: {low:.4f} .. {high:.4f}"
            )
            yield html.tile("top-1 agreement", f"{comparison['top1_agreement']:.1%}", "same most likely token")
    if entry.speed is not None:
        yield html.tile(
            "decoding", f"{entry.speed.decode_tokens_per_second:,.1f}/s", "tokens of one request, native executor"
        )
        yield html.tile(
            "first token", f"{1e3 * entry.speed.ttft_seconds:,.0f} ms", f"after {entry.speed.prompt_tokens} tokens"
        )
        yield html.tile("peak memory", format_bytes(entry.speed.peak_rss_bytes), "of a process that serves it")


def _facts(entry: CheckpointEntry) -> Iterator[tuple[str, str]]:
    record = entry.record or {}
    yield "stored as", entry.stored_as
    if "source" in record:
        yield "source", str(record["source"])
    if "recipe" in record:
        yield "recipe", recipe_text(record["recipe"])
    if record.get("calibration"):
        yield "calibration", _calibration_text(record["calibration"])
    if "verification" in record:
        yield "read back by", str(record["verification"])
    if entry.quality is not None:
        low, high = entry.quality["perplexity_interval"]
        yield "perplexity", f"{entry.quality['perplexity']:.4f} (95 %: {low:.3f} .. {high:.3f}), {entry.quality_origin}"
        yield "protocol", protocol_text(entry)
        comparison = entry.quality.get("comparison")
        if comparison:
            yield "against", _comparison_text(comparison)
    if entry.speed is not None:
        yield "speed", f"{entry.speed}; {entry.speed.protocol}"
    yield from _circumstances(record)


def _circumstances(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if record.get("seconds"):
        yield "time", ", ".join(f"{name} {format_seconds(value)}" for name, value in record["seconds"].items())
    if record.get("num_resumed_blocks"):
        yield "resumed", f"{record['num_resumed_blocks']} blocks were there from a run that had been interrupted"
    for name in ("machine", "versions"):
        if record.get(name):
            yield name, ", ".join(f"{_words(key)} {value}" for key, value in record[name].items())


def recipe_text(recipe: Mapping[str, Any]) -> str:
    """In words; a recipe of a version with other fields is shown field by field."""
    from octavo.core.errors import InvalidField
    from octavo.quantize.recipe import Recipe

    try:
        return str(Recipe.of(**recipe))
    except (InvalidField, TypeError):
        return ", ".join(f"{name} {value}" for name, value in recipe.items())


def _calibration_text(calibration: Mapping[str, Any]) -> str:
    known = {name: value for name, value in calibration.items() if not isinstance(value, list | dict)}
    tokens = f"{known.pop('num_tokens'):,} tokens" if "num_tokens" in known else ""
    source = str(known.pop("source", ""))
    rest = ", ".join(f"{_words(name)} {value}" for name, value in known.items())
    return "; ".join(filter(None, [source, tokens, rest]))


def _comparison_text(comparison: Mapping[str, Any]) -> str:
    low, high = comparison["perplexity_ratio_interval"]
    return (
        f"{comparison['base']} ({comparison['base_bits_per_weight']:.2f} bits per weight): perplexity "
        f"{comparison['base_perplexity']:.4f}, ratio {comparison['perplexity_ratio']:.4f} (95 %: {low:.4f} .. "
        f"{high:.4f}), KL at the 99.9th percentile {comparison['divergence_999']:.3f} nats"
    )


def _error_section(entry: CheckpointEntry) -> str:
    modules = (entry.record or {}).get("modules") or []
    roles = errors_by_role(modules)
    if not roles:
        return ""
    names = ["rounded to nearest", "as written"]
    panels = [Panel(role, lines) for role, lines in roles.items()]
    axis = Axis("relative error", is_log=True, show=lambda value: f"{value:.2g}")
    chart = line_panels("Relative error of outputs by block", panels, Axis("block", show=lambda v: f"{v:.0f}"), axis)
    head = ("role", "block", *names)
    rows = [
        (role, str(block), _number(before), _number(after))
        for role, lines in roles.items()
        for block, (before, after) in enumerate(zip(*lines.values(), strict=True))
    ]
    caption = (
        "Energy of what rounding adds to a matrix's outputs on the calibration text, as a share of the outputs' own; "
        "left to right: first block to last, logarithmic. Without calibration: of the weights themselves."
    )
    return html.section("Error by layer", html.figure(chart, caption, html.table(head, rows), legend(names, "series")))


def _size_section(entry: CheckpointEntry) -> str:
    if not entry.size_parts:
        return ""
    parts = list(entry.size_parts)
    shown = Axis("bytes", show=lambda value: format_bytes(value))
    chart = stacked_bars("Bytes by part", {entry.name: entry.size_parts}, parts, shown)
    rows = [(part, f"{count:,}", f"{count / entry.weight_bytes:.1%}") for part, count in entry.size_parts.items()]
    rows.append(("all weight files", f"{entry.weight_bytes:,}", "100.0%"))
    data = html.table(("part", "bytes", "share"), rows)
    return html.section(
        "Size by part", html.figure(chart, "All bytes of the weight files.", data, legend(parts, "part"))
    )


def _module_section(entry: CheckpointEntry) -> str:
    modules: Sequence[Mapping[str, Any]] = (entry.record or {}).get("modules") or []
    if not modules:
        return ""
    used = [(title, name) for title, name in _MODULE_FIELDS if any(module.get(name) for module in modules)]
    names = 1 + sum(name in ("method", "scheme", "transforms", "shape") for _, name in used)
    head = ["module", *(title for title, _ in used)]
    rows = [[str(module["name"]), *(_cell(module.get(name)) for _, name in used)] for module in modules]
    table = html.table(head, rows, num_names=names)
    return html.section("Modules", html.folded(f"{len(modules)} matrices: what was done to each", table))


def _words(name: str) -> str:
    return name.removeprefix("num_").replace("_", " ")


def _cell(value: Any) -> str:
    if value is None or value == []:
        return "-"
    if isinstance(value, list | tuple):
        return (
            " x ".join(map(str, value)) if all(isinstance(each, int) for each in value) else ", ".join(map(str, value))
        )
    if isinstance(value, float):
        return _number(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
