"""What a process occupies: its own, and not what the process that started it did."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from octavo.engine.process_memory import peak_resident_bytes, peak_resident_bytes_of, resident_bytes

MIB = 1 << 20
_PRINT_PEAK = "from octavo.engine.process_memory import peak_resident_bytes as peak; print(peak())"
_HOLD_MUCH_AND_START = f"""
import subprocess, sys
block = bytearray(600 << 20)
print(subprocess.run([sys.executable, "-c", {_PRINT_PEAK!r}], capture_output=True, text=True, check=True).stdout)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere getrusage is all there is")
def test_a_childs_peak_is_its_own() -> None:
    """A report after a quantization showed the quantizer's 1.7 GiB as the server's peak."""
    run = subprocess.run([sys.executable, "-c", _HOLD_MUCH_AND_START], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 550 * MIB


def test_the_peak_is_what_was_held() -> None:
    before = resident_bytes()
    block = bytearray(64 * MIB)
    assert peak_resident_bytes() > before + 60 * MIB
    del block
    assert peak_resident_bytes() > before + 60 * MIB
    if sys.platform == "linux":
        assert peak_resident_bytes_of(os.getpid()) == peak_resident_bytes()
