"""What `octavo doctor MODEL` shows: which kernel computes each layer, and how near each is to the roofline."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.ops.native.executor import NativeExecutor
    from octavo.ops.native.roofline import InstructionTime, ProgramProfile

_INDEX = re.compile(r"(?<=\.)\d+(?=\.)")


def make_executor(
    model: str, num_rows: int, context: int, threads: int | None, isa: str | None, kv_dtype: str
) -> NativeExecutor:
    """A native executor with just the memory that a step of `num_rows` tokens behind `context` positions needs.

    Raises `ExecutorUnavailable` for a model that it cannot compute, and what loading raises.
    """
    from octavo.models.load import build_model, open_model_checkpoint
    from octavo.models.registry import read_spec
    from octavo.ops.executor_plan import StepLimits
    from octavo.ops.kv_format import chosen_dtype
    from octavo.ops.native.executor import NativeExecutor
    from octavo.ops.native.packed_model import pack_model

    checkpoint = open_model_checkpoint(model)
    loaded = build_model(checkpoint, read_spec(checkpoint.config))
    block_size = 16
    num_blocks = num_rows * -(-(context + num_rows) // block_size)
    limits = StepLimits(num_rows, num_rows, num_rows)
    kv_dtype = chosen_dtype(kv_dtype, loaded.attention_layers, "bfloat16")
    packed = pack_model(loaded, threads, consume=True)
    return NativeExecutor(packed, num_blocks, block_size, limits, kv_dtype=kv_dtype, threads=threads, isa=isa)


def kernels_of(executor: NativeExecutor) -> dict[str, Any]:
    """Facts about the program and its instructions; equal ones of several layers are one entry."""
    from octavo.ops.kv_format import describe

    return {
        "unit": executor.unit,
        "kv_format": describe(executor.kv_format),
        "threads": executor.team.num_threads,
        "weight_bytes": executor.weight_bytes,
        "scratch_bytes": executor.program.scratch_bytes,
        "instructions": list(_grouped(executor.program.instructions())),
    }


def _grouped(instructions: Iterable[dict[str, str]]) -> Iterator[dict[str, Any]]:
    """Instructions of the same kind, weights and name but for the layer's index, in order of first appearance."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for each in instructions:
        indices = [int(index) for index in _INDEX.findall(each["name"])]
        key = (_INDEX.sub("*", each["name"]), each["kind"], each["weights"])
        groups.setdefault(key, []).extend(indices[:1])
    for (name, kind, weights), indices in groups.items():
        yield {"name": name, "layers": ranges(indices), "kind": kind, "weights": weights}


def ranges(indices: Iterable[int]) -> str:
    """`0, 1, 2, 5` -> `0-2, 5`."""
    spans: list[list[int]] = []
    for index in sorted(set(indices)):
        if spans and index == spans[-1][1] + 1:
            spans[-1][1] = index
        else:
            spans.append([index, index])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def kernel_lines(facts: dict[str, Any]) -> list[str]:
    """`kernels_of`, for people."""
    from octavo.core.units import format_bytes

    lines = [
        f"unit {facts['unit']}, {facts['threads']} threads, weights {format_bytes(facts['weight_bytes'])}, "
        f"scratch {format_bytes(facts['scratch_bytes'])}, keys and values {facts['kv_format']}"
    ]
    rows = [(each["kind"], each["layers"], each["name"], each["weights"]) for each in facts["instructions"]]
    return lines + _table(("computes", "layers", "module", "weights"), rows)


def profile_facts(profile: ProgramProfile) -> dict[str, Any]:
    """A profile as JSON holds it."""
    return {
        "num_rows": profile.num_rows,
        "context": profile.context,
        "is_prefill": profile.is_prefill,
        "seconds": profile.seconds,
        "share_of_roofline": profile.share,
        **asdict(profile.limits),
        "kinds": [_time_facts(each) for each in profile.by_kind()],
        "instructions": [_time_facts(each) for each in profile.instructions],
    }


def _time_facts(each: InstructionTime) -> dict[str, Any]:
    return {**asdict(each), "share_of_roofline": each.share}


def profile_lines(profile: ProgramProfile) -> list[str]:
    """A profile for people: every instruction, then the sums by kind."""
    limits = profile.limits
    what = "one prompt's chunk" if profile.is_prefill else "one token of each sequence"
    tokens_per_second = profile.num_rows / profile.seconds
    roofs = (
        f"{limits.bytes_per_second / 1e9:.1f} GB/s read, {limits.operations_per_second / 1e9:,.0f} G int8 operations/s"
    )
    title = (
        f"{profile.num_rows} tokens ({what}) behind {profile.context} positions: {profile.seconds * 1e3:.2f} ms, "
        f"{tokens_per_second:,.0f} tokens/s, {profile.share:.0%} of the roofline ({roofs})"
    )
    head = ("computes", "module", "weights", "MB", "M operations", "us", "GB/s", "roofline")
    each = [_profile_row(time) for time in profile.instructions]
    sums = [_profile_row(time) for time in profile.by_kind()]
    return [*_table(head, each), "", title, *_table(head, sums)]


def _profile_row(time: InstructionTime) -> tuple[str, ...]:
    return (
        time.kind,
        time.name,
        time.weights,
        f"{time.num_bytes / 1e6:.3f}",
        f"{time.num_operations / 1e6:.2f}",
        f"{time.seconds * 1e6:.1f}",
        f"{time.num_bytes / time.seconds / 1e9:.1f}" if time.seconds else "",
        f"{time.share:.0%}",
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest cell; numbers to the right."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if cell[:1].isdigit() and column > 2 else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "  " + "  ".join(padded).rstrip()

    return [line(head), *(line(row) for row in rows)]
