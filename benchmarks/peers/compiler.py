"""Which C compiler builds llama.cpp here, and what it must be told."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

#: gcc before this drops part of the tile configuration that AMX reads, and the program dies of SIGILL.
FIRST_GCC_WITH_SOUND_AMX = 13
NO_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"


def compiler() -> str:
    """The first line of `cc --version`, or why there is none."""
    cc = shutil.which("cc")
    if cc is None:
        return "no cc on PATH"
    return subprocess.run([cc, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]


def gcc_major(version_line: str) -> int | None:
    """The major version of a gcc; None for another compiler."""
    match = re.search(r"\b(?:gcc|cc) .*?(\d+)\.\d+", version_line)
    return int(match[1]) if match else None


def processor_flags() -> frozenset[str]:
    """The instruction sets that the kernel reports."""
    cpuinfo = Path("/proc/cpuinfo")
    match = re.search(r"^flags\s*:(.*)$", cpuinfo.read_text(), re.MULTILINE) if cpuinfo.exists() else None
    return frozenset(match[1].split()) if match else frozenset()


def amx_is_unsafe(version_line: str, flags: frozenset[str]) -> bool:
    """An AMX processor together with a gcc that miscompiles its configuration."""
    major = gcc_major(version_line)
    return "amx_tile" in flags and major is not None and major < FIRST_GCC_WITH_SOUND_AMX


def native_flags() -> str:
    """Compiler flags beside `-march=native`."""
    return NO_AMX if amx_is_unsafe(compiler(), processor_flags()) else ""


def build_in_words() -> str:
    flags = f" {NO_AMX}" if native_flags() else ""
    return f"{compiler()}, -march=native{flags}"
