"""One row's run: a process of its own, timed, its memory watched."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.models import Models, requantize_command
from benchmarks.quantization.environments import ENVIRONMENTS
from benchmarks.quantization.rows import GROUP, Row

WORKERS = Path(__file__).with_name("workers")
REPOSITORY = Path(__file__).parents[2]
#: The longest a row may take.
LIMIT_SECONDS = 7200


@dataclass(frozen=True)
class Task:
    """What all rows share: the source directory (float32), the calibration text and how much of it."""

    source: Path
    calibration: Path
    samples: int
    sequence_length: int
    folder: Path

    def output(self, row: Row) -> Path:
        return self.folder / "models" / (row.name if row.file_type is None else f"{row.name}.gguf")

    def result_file(self, row: Row) -> Path:
        return self.folder / f"{row.name}.json"


def run_row(row: Row, task: Task) -> dict[str, Any]:
    """Seconds, CPU seconds and peak resident bytes of the row's process; raises `RuntimeError` with its last lines."""
    task.output(row).parent.mkdir(parents=True, exist_ok=True)
    command = _octavo_command(row, task) if row.tool == "octavo" else _peer_command(row, task)
    log = task.folder / f"{row.name}.log"
    started = time.perf_counter()
    with log.open("w") as stream:
        # `python -m` finds its module from the repository; the others leave logs of their own where they run.
        directory = REPOSITORY if "-m" in command else task.folder
        process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, cwd=directory)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{row.name}: exit {process.returncode}: {log.read_text()[-600:]}")
    result = {"row": asdict(row), "seconds": time.perf_counter() - started, **_usage(usage)}
    task.result_file(row).write_text(json.dumps(result, indent=1))
    return result


def _usage(usage: resource.struct_rusage) -> dict[str, float]:
    return {"cpu_seconds": usage.ru_utime + usage.ru_stime, "peak_bytes": usage.ru_maxrss * 1024}


def _octavo_command(row: Row, task: Task) -> list[str]:
    fitted = row.options[0] == "fit"  # an embedding of a fit has the bits that pay
    verb, options = ("fit", row.options[1:]) if fitted else ("quantize", ("--embedding-bits", "16", *row.options))
    command = [sys.executable, "-m", "octavo.cli.main", verb, str(task.source), "-o", str(task.output(row))]
    command += ["--no-measure", *options]
    needs_text = "rtn" not in row.options or "--transform" in row.options or "static" in " ".join(row.options)
    if needs_text:
        command += ["--calibration", str(task.calibration), "--samples", str(task.samples)]
        command += ["--sequence-length", str(task.sequence_length)]
    return command


def _peer_command(row: Row, task: Task) -> list[str]:
    environment = ENVIRONMENTS[row.tool]
    if (reason := environment.why_missing()) is not None:
        how = f"python -m benchmarks.quantization setup --rows {row.name}"
        raise RuntimeError(f"{row.name}: {reason.partition('; run:')[0]}; run: {how}")
    if row.file_type is None:
        worker = WORKERS / f"quantize_with_{row.tool}.py"
        return [str(environment.python), str(worker), str(_write_job(row, task))]
    models = Models()
    if task.source != models.hugging_face:
        raise RuntimeError(
            f"{row.name}: source: got {task.source}; llama.cpp's types are made of {models.source} alone"
        )
    return requantize_command(environment, models.gguf("F16"), task.output(row), row.file_type)


def _write_job(row: Row, task: Task) -> Path:
    """What a peer's worker reads: the same tokens as ours."""
    from octavo.quantize.calibration import load_calibration
    from octavo.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_directory(task.source)
    calibration = load_calibration(tokenizer, task.calibration, task.samples, task.sequence_length)
    job = task.folder / f"{row.name}.job.json"
    options = {"bits": row.bits, "group": GROUP, "source": str(task.source), "output": str(task.output(row))}
    job.write_text(json.dumps({**options, "windows": calibration.windows}))
    return job
