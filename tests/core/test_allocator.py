"""Freed memory is kept while a job runs, and given back afterwards."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

_PROGRAM = """
import contextlib, ctypes, resource
from octavo.core.allocator import freed_memory_kept

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes, libc.memset.argtypes = [ctypes.c_void_p], [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
SIZE = 24 * 2**20

def faults(rounds):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(rounds):
        block = libc.malloc(SIZE)
        libc.memset(block, 1, SIZE)
        libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

small = resident()
with freed_memory_kept():
    with freed_memory_kept():
        faults(1)
    kept, held = faults(8), resident()
print(kept, held - small, resident() - small, faults(8))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are left as they are")
def test_blocks_are_reused_inside_and_given_back_afterwards() -> None:
    result = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    kept, held, left, fresh = map(int, result.stdout.split())
    assert kept * 20 < fresh, "inside nothing comes from the kernel again, even after an inner one has ended"
    assert held > 20 * 2**20
    assert left < 10 * 2**20
