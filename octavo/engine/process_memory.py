"""What this process occupies, as the operating system counts it."""

from __future__ import annotations

import atexit
import ctypes
import gc
import re
import resource
import sys
from pathlib import Path

import psutil


def resident_bytes() -> int:
    """Bytes of physical memory this process holds now (RSS)."""
    return int(psutil.Process().memory_info().rss)


def peak_resident_bytes() -> int:
    """The most physical memory this process has held since its program began."""
    unit = 1 if sys.platform == "darwin" else 1024
    return peak_resident_bytes_of("self") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def peak_resident_bytes_of(process_id: int | str) -> int | None:
    """The same of another process; None where the system does not say. Not `ru_maxrss`, which begins with what the
    process that started it held."""
    status = Path(f"/proc/{process_id}/status")
    match = re.search(r"^VmHWM:\s+(\d+) kB", status.read_text(), re.MULTILINE) if status.exists() else None
    return int(match[1]) * 1024 if match else None


def available_bytes() -> int:
    """Bytes this machine could still give without swapping."""
    return int(psutil.virtual_memory().available)


def return_free_memory() -> None:
    """Collect garbage and give free pages back: what loading leaves behind hangs together in circles."""
    gc.collect()
    return_free_pages()


def return_free_pages() -> None:
    """Give the allocator's free pages back (glibc keeps them otherwise)."""
    trim = getattr(_libc(), "malloc_trim", None)
    if trim is not None:
        trim(0)


def spare_from_collection() -> None:
    """Let Python's garbage collector pass over everything that is there now: what was imported and built stays to the
    end, and looking through it takes a tenth of a second each time, in the middle of somebody's answer. For processes
    that do nothing else. At the end they are collected after all, so that every object is taken down in order."""
    gc.freeze()
    atexit.register(gc.unfreeze)


def limit_allocator_growth() -> None:
    """Ask glibc for one arena and a fixed threshold for memory that goes straight back to the system.

    By default each thread gets an arena, and the threshold grows with use up to 32 MiB: then a step's tensors leave
    holes that stay resident. Other allocators have no `mallopt`; then nothing changes.
    """
    mallopt = getattr(_libc(), "mallopt", None)
    if mallopt is not None:
        for parameter, value in _MALLOPT.items():
            mallopt(parameter, value)


#: M_ARENA_MAX, M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of glibc's malloc.h.
_MALLOPT = {-8: 1, -1: 16 << 20, -3: 8 << 20}


def _libc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if sys.platform == "linux" else None
