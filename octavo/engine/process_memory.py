"""What this process occupies, as the operating system counts it."""

from __future__ import annotations

import ctypes
import gc
import sys

import psutil


def resident_bytes() -> int:
    """Bytes of physical memory this process holds now (RSS)."""
    return int(psutil.Process().memory_info().rss)


def available_bytes() -> int:
    """Bytes this machine could still give without swapping."""
    return int(psutil.virtual_memory().available)


def return_free_memory() -> None:
    """Collect garbage and give the allocator's free pages back (glibc keeps them otherwise)."""
    gc.collect()
    trim = getattr(_libc(), "malloc_trim", None)
    if trim is not None:
        trim(0)


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
