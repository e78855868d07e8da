"""Builds `check_unit` for instruction sets that this machine lacks, and runs it.

AVX-512 and AMX: the unit's source over SIMDe and the headers in `avx512/`, for any x86-64 with AVX2. NEON: a cross
compiler and qemu-user. Objects are kept in `build/emulated` and made again when what they are made of is newer.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.house import ROOT

HERE = Path(__file__).parent
NATIVE = ROOT / "native"
BUILD = ROOT / "build" / "emulated"
SOURCES = [NATIVE / "units" / "portable.cpp", *sorted((NATIVE / "self_test").glob("*.cpp"))]
#: As in CMakeLists.txt, but for the level of optimization, which must not matter; gcc's own headers warn.
FLAGS = ["-std=c++20", "-O1", "-ffp-contract=off", "-Wno-psabi", "-Wno-uninitialized", "-Wno-maybe-uninitialized"]


@dataclass(frozen=True)
class Target:
    """One program: the unit under test, the compiler for it, what its files need, what runs it."""

    unit: str
    compiler: str
    unit_flags: list[str]
    units: list[str]
    link_flags: list[str] = field(default_factory=list)
    runner: list[str] = field(default_factory=list)
    includes: list[Path] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return BUILD / self.unit

    @property
    def program(self) -> Path:
        return self.folder / "check_unit"


EMULATED = {"includes": [HERE / "avx512"], "unit_flags": ["-mavx2", "-mfma", "-mf16c"], "compiler": "g++"}
TARGETS = {
    "avx512": Target("avx512", units=["avx512"], **EMULATED),
    "amx": Target("amx", units=["avx512", "amx"], **EMULATED),
    "neon": Target(
        "neon",
        compiler="aarch64-linux-gnu-g++",
        units=["neon"],
        unit_flags=["-march=armv8.2-a+dotprod"],
        link_flags=["-static"],
        runner=["qemu-aarch64"],
    ),
}


def missing_tools(target: Target) -> str:
    """What this machine lacks for a target, with the Debian package that has it; "" if nothing."""
    if target.unit == "neon":
        packages = {"aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu", "qemu-aarch64": "qemu-user"}
        return ", ".join(f"no {tool} (Debian: {name})" for tool, name in packages.items() if not shutil.which(tool))
    if platform.machine() != "x86_64":
        return "AVX-512 is emulated on x86-64 only"
    if not shutil.which("g++"):
        return "no g++"
    probe = ["g++", "-E", "-include", "simde/x86/avx512.h", "-x", "c++", "/dev/null", "-o", "/dev/null"]
    return "" if subprocess.run(probe, capture_output=True).returncode == 0 else "no SIMDe (Debian: libsimde-dev)"


def build(target: Target) -> Path:
    """Compiles what is out of date, two files at a time, and links. Raises `RuntimeError` with the compiler's words."""
    target.folder.mkdir(parents=True, exist_ok=True)
    emulated = [f"-I{path}" for path in target.includes]
    jobs = [(source, []) for source in SOURCES]
    jobs += [(NATIVE / "units" / f"{unit}.cpp", emulated + target.unit_flags) for unit in target.units]
    jobs.append((HERE / "check_unit.cpp", [f"-DOCTAVO_UNIT={target.unit}_kernels"]))
    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(lambda job: _compile(target, *job), jobs))
    _run([target.compiler, *target.link_flags, *map(str, objects), "-o", str(target.program)])
    return target.program


def check(target: Target) -> dict[str, str]:
    """Runs the program: `cases`, `differ`, `digest`, and `output`, whatever it printed."""
    ended = subprocess.run([*target.runner, str(target.program)], capture_output=True, text=True)
    lines = ended.stdout.splitlines()
    facts = dict(line.split(" ", 1) for line in lines if line.split(" ", 1)[0] in ("cases", "differ", "digest"))
    return {"output": ended.stdout + ended.stderr, **facts}


def _compile(target: Target, source: Path, flags: list[str]) -> Path:
    made = target.folder / f"{source.stem}.o"
    if not _is_current(made):
        command = ["nice", "-n", "10", target.compiler, *flags, *FLAGS, "-MMD", f"-I{NATIVE}", "-c", str(source)]
        _run([*command, "-o", str(made)])
    return made


def _is_current(made: Path) -> bool:
    """Whether an object is newer than all that the compiler read for it, of which it left a list."""
    read = made.with_suffix(".d")
    if not (made.exists() and read.exists()):
        return False
    sources = [Path(word) for word in read.read_text().replace("\\\n", " ").split()[1:]]
    return all(path.exists() and path.stat().st_mtime < made.stat().st_mtime for path in sources)


def _run(command: list[str]) -> None:
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{ended.stderr[-4000:]}")
