"""The machine under the figures: processor, memory bandwidth, compilers, versions."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.peers.compiler import compiler, processor_flags

#: Instruction sets that decide how fast a CPU multiplies; the rest of the kernel's list is noise here.
TELLING_FLAGS = (
    "avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_int8", "amx_bf16",
    "asimddp", "i8mm",
)  # fmt: skip
#: About a 4-bit model, which may stay in the last cache, and more than any cache holds.
BANDWIDTH_MEBIBYTES = (80, 1024)
READ_SECONDS = 0.3


def describe() -> dict[str, Any]:
    """What does not change within a run."""
    flags = processor_flags()
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "instruction_sets": [flag for flag in TELLING_FLAGS if flag in flags],
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "compiler": compiler(),
        "python": platform.python_version(),
        "octavo": importlib.metadata.version("octavo"),
        "torch": importlib.metadata.version("torch"),
    }


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    match = re.search(r"^model name\s*:\s*(.*)$", cpuinfo.read_text(), re.MULTILINE) if cpuinfo.exists() else None
    return match[1] if match else platform.processor() or "unknown"


class ReadBandwidth:
    """Bytes a second that all cores together read; compiled once, measured when asked."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="octavo-bandwidth-")
        self._program = Path(self._directory.name) / "read_bandwidth"
        source = Path(__file__).with_name("read_bandwidth.c")
        subprocess.run(["cc", "-O3", "-march=native", "-pthread", str(source), "-o", str(self._program)], check=True)

    def measure(self) -> dict[int, float]:
        """MiB of the buffer -> bytes a second."""
        return {mebibytes: self._read(mebibytes) for mebibytes in BANDWIDTH_MEBIBYTES}

    def _read(self, mebibytes: int) -> float:
        threads = len(os.sched_getaffinity(0))
        command = [str(self._program), str(threads), str(mebibytes << 20), str(READ_SECONDS)]
        return float(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout)
