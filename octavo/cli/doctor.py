"""`octavo doctor`: what this machine offers, and what Octavo makes of it."""

from __future__ import annotations

import json
import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from octavo import __version__
from octavo.cli.engine_options import IsaOption, KvDtypeOption, ThreadsOption
from octavo.core.errors import InvalidField
from octavo.core.units import format_bytes


def run(
    model: Annotated[str | None, typer.Argument(help="Show which kernel computes each layer of this model.")] = None,
    program: Annotated[bool, typer.Option("--program", help="Time each instruction of the model's program.")] = False,
    rows: Annotated[int, typer.Option(min=1, help="--program: tokens in the step, one of each sequence.")] = 1,
    context: Annotated[int, typer.Option(min=0, help="--program: positions before them.")] = 16,
    prefill: Annotated[bool, typer.Option("--prefill", help="--program: the tokens are one prompt's chunk.")] = False,
    kv_dtype: KvDtypeOption = "auto",
    threads: ThreadsOption = None,
    isa: IsaOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the processor, threads, memory, torch and the native kernels, and what was chosen and why; with a model,
    what computes each of its layers and how near that is to what the machine allows."""
    if model is None:
        _refuse_model_options(program, threads, isa)
        _show_machine(as_json)
    else:
        _show_model(model, program, Rows(rows, context, prefill), ExecutorOptions(threads, isa, kv_dtype), as_json)


@dataclass(frozen=True, slots=True)
class Rows:
    """The step that is timed."""

    num_rows: int
    context: int
    is_prefill: bool


@dataclass(frozen=True, slots=True)
class ExecutorOptions:
    threads: int | None
    isa: str | None
    kv_dtype: str


def _refuse_model_options(program: bool, threads: int | None, isa: str | None) -> None:
    for name, value in (("--program", program or None), ("--threads", threads), ("--isa", isa)):
        if value is not None:
            raise InvalidField(name, value, "it needs a model: octavo doctor MODEL")


def _show_model(model: str, timed: bool, step: Rows, options: ExecutorOptions, as_json: bool) -> None:
    from octavo.cli import program_report as report
    from octavo.ops.kv_format import KV_DTYPES

    if options.kv_dtype not in KV_DTYPES:
        raise InvalidField("kv_dtype", options.kv_dtype, f"must be one of {', '.join(KV_DTYPES)}")
    executor = report.make_executor(model, step.num_rows, step.context, options.threads, options.isa, options.kv_dtype)
    facts = report.kernels_of(executor)
    if not timed:
        print(json.dumps(facts) if as_json else "\n".join(report.kernel_lines(facts)))
        return
    from octavo.ops.native.roofline import profile_program

    profile = profile_program(executor, step.num_rows, step.context, step.is_prefill)
    if as_json:
        print(json.dumps({**facts, "profile": report.profile_facts(profile)}))
    else:
        print("\n".join([*report.kernel_lines(facts), "", *report.profile_lines(profile)]))


def _show_machine(as_json: bool) -> None:
    report = examine()
    if as_json:
        print(json.dumps(report))
        return
    for section, facts in report.items():
        print(section)
        for name, value in facts.items():
            print(f"  {name.replace('_', ' '):22} {_shown(name, value)}")


def examine() -> dict[str, dict[str, Any]]:
    """Facts by section; byte counts under names that end in `_bytes`."""
    return {
        "octavo": {"version": __version__, "python": platform.python_version(), "executable": sys.executable},
        "processor": _processor(),
        "threads": _threads(),
        "memory": _memory(),
        "torch": _torch(),
        "native": _native(),
    }


def _processor() -> dict[str, Any]:
    return {"model": _processor_model(), "architecture": platform.machine(), "features": _features()}


def _processor_model() -> str:
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _features() -> list[str]:
    try:
        from octavo.ops.native.kernel_units import cpu_features
    except ImportError:
        return []
    return cpu_features()


def _threads() -> dict[str, Any]:
    """Processors of the machine, those this process may run on, and the time a container may use of them."""
    import torch

    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "processors": os.cpu_count(),
        "allowed_by_affinity": allowed,
        "allowed_by_cgroup": _cgroup_processors(),
        "torch_threads": torch.get_num_threads(),
    }


def _cgroup_processors() -> float | None:
    """Processors' worth of time that the control group (v2) allows; None for no limit."""
    for line in _lines(_cgroup_directory() / "cpu.max"):
        quota, period = line.split()
        return None if quota == "max" else round(int(quota) / int(period), 2)
    return None


def _memory() -> dict[str, Any]:
    import psutil

    memory = psutil.virtual_memory()
    limits = [line for line in _lines(_cgroup_directory() / "memory.max") if line != "max"]
    return {
        "total_bytes": memory.total,
        "available_bytes": memory.available,
        "cgroup_limit_bytes": int(limits[0]) if limits else None,
        "process_bytes": psutil.Process().memory_info().rss,
    }


def _cgroup_directory() -> Path:
    """This process's directory in the version 2 hierarchy."""
    for line in _lines("/proc/self/cgroup"):
        if line.startswith("0::"):
            return Path("/sys/fs/cgroup") / line.removeprefix("0::").lstrip("/")
    return Path("/sys/fs/cgroup")


def _torch() -> dict[str, Any]:
    import torch

    configuration = torch.__config__.show()
    blas = [word.strip() for word in configuration.split(",") if "BLAS_INFO=" in word]
    return {
        "version": torch.__version__,
        "blas": blas[0].partition("=")[2] if blas else "unknown",
        "onednn": torch.backends.mkldnn.is_available(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cuda": torch.version.cuda if torch.cuda.is_available() else None,
    }


def _native() -> dict[str, Any]:
    """The extension, the kernel units of this build, and which one runs."""
    try:
        from octavo.ops.native import _kernels
        from octavo.ops.native.kernel_units import chosen_unit, kernel_units
    except ImportError as error:
        return {"extension": None, "problem": f"{error}; install it: pip install -e ."}
    units = {unit.name: unit.reason or "runs here" for unit in kernel_units()}
    chosen = chosen_unit()
    rejected = [f"{unit.name}: {unit.reason}" for unit in kernel_units() if not unit.is_available]
    why = f"the fastest unit that runs here{'; ' + ', '.join(rejected) if rejected else ''}"
    return {
        "extension": _kernels.__file__,
        "units": units,
        "chosen_unit": chosen.name,
        "why": why,
    }


def _lines(path: str | Path) -> list[str]:
    """The lines of a system file; none where there is no such file."""
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def _shown(name: str, value: Any) -> str:
    if value is None:
        return "none"
    if name.endswith("_bytes"):
        return format_bytes(value)
    if isinstance(value, dict):
        return ", ".join(f"{key}: {text}" for key, text in value.items())
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    return str(value)
