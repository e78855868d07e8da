"""`python -m benchmarks.quantization.domains`: what the calibration text changes, in its domain and in the others.

One checkpoint for each text of `shared/data` (web text, medicine, law, programs, Chinese) and one for all of them
together; each measured on other documents of every domain. What is there is not made or measured again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.quantization.__main__ import DATA

DOMAINS = DATA.parent / "domain"
WEB, MIXTURE = "web", "all"
_FILES = {"medical": "medical-en", "legal": "legal-en", "code": "python-code", "chinese": "chinese"}
CALIBRATION = {WEB: DATA / "c4-sample.txt", **{name: DOMAINS / f"{file}.calib.txt" for name, file in _FILES.items()}}
EVALUATION = {
    WEB: DATA / "wikitext2-raw" / "wiki.test.raw",
    **{name: DOMAINS / f"{file}.eval.txt" for name, file in _FILES.items()},
}


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in (*CALIBRATION, MIXTURE):
        _quantize(name, options)
    results = _measure(options)
    for metric, digits in (("kl", 3), ("perplexity", 2)):
        print(f"\n{metric}\n" + _table(results, metric, digits))


def _quantize(name: str, options: argparse.Namespace) -> None:
    sources = [*CALIBRATION.values()] if name == MIXTURE else [CALIBRATION[name]]
    command = [sys.executable, "-m", "octavo.cli.main", "quantize", str(options.source), "-o"]
    command += [str(options.folder / name), "--bits", str(options.bits), "--group", "64", "--embedding-bits", "16"]
    command += ["--samples", str(options.samples), "--no-measure"]
    for source in sources:
        command += ["--calibration", str(source)]
    if not (options.folder / name).exists():
        subprocess.run(command, check=True)


def _measure(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Evaluation text -> calibration text -> quality."""
    from benchmarks.quantization.quality import Base, measure

    file = options.folder / f"quality-{options.windows}.json"
    results: dict[str, dict[str, Any]] = json.loads(file.read_text()) if file.exists() else {}
    for domain, text in EVALUATION.items():
        row = results.setdefault(domain, {})
        missing = [name for name in (*CALIBRATION, MIXTURE) if name not in row]
        base = Base(options.source, text, options.windows, options.folder) if missing else None
        for name in missing:
            assert base is not None
            row[name] = measure(options.folder / name, base)
            file.write_text(json.dumps(results, indent=1))
            print(f"calibrated on {name}, measured on {domain}: {row[name]}", flush=True)
    return results


def _table(results: dict[str, dict[str, Any]], metric: str, digits: int) -> str:
    names = [*CALIBRATION, MIXTURE]
    lines = ["| measured on | " + " | ".join(names) + " | base perplexity |", "|---" * (len(names) + 2) + "|"]
    for domain, row in results.items():
        cells = [f"{row[name][metric]:.{digits}f}" for name in names]
        lines.append(f"| {domain} | {' | '.join(cells)} | {row[WEB]['base_perplexity']:.2f} |")
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    from benchmarks.peers.models import Models

    parser = argparse.ArgumentParser(prog="python -m benchmarks.quantization.domains", description=__doc__)
    parser.add_argument("--source", type=Path, default=Models().hugging_face)
    parser.add_argument("--bits", type=int, default=3)
    parser.add_argument("--samples", type=int, default=32, help="calibration windows of 512 tokens")
    parser.add_argument("--windows", type=int, default=4, help="evaluation windows of 2,048 tokens")
    parser.add_argument("--folder", type=Path, default=Path("build/domains"))
    return parser


if __name__ == "__main__":
    main()
