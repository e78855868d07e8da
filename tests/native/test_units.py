"""Kernel units: every unit has the portable unit's bits, and one that has not is not used.

Units for processors that this machine is not are emulated (`tests/native/emulation`), which takes minutes to compile:
`make test-emulated`.
"""

from __future__ import annotations

import os
import signal
import time

import pytest

from octavo.core.errors import InvalidField
from octavo.ops.native import _kernels
from octavo.ops.native.executor import unit_named
from octavo.ops.native.kernel_units import chosen_unit, cpu_features, kernel_units
from tests.native.emulation import programs

RUNNABLE = [unit.name for unit in kernel_units() if unit.is_available]

#: Cases of native/self_test/cases.cpp.
NUM_CASES = 621


@pytest.mark.parametrize("unit", RUNNABLE)
def test_a_unit_that_runs_here_has_the_portable_bits(unit: str) -> None:
    assert _kernels.self_test(unit, thorough=True) == ""


def test_the_self_test_takes_a_few_milliseconds() -> None:
    start = time.thread_time()
    assert _kernels.self_test(chosen_unit().name) == ""
    assert time.thread_time() - start < 0.05  # 1 to 2 ms on a quiet core


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        ("refused", "SIGILL"),
        ("faulting", f"signal {signal.SIGSEGV.value}"),
        ("forgetful", "instead of"),
        ("inexact", "instead of"),
    ],
)
def test_a_broken_unit_fails_by_name_and_the_process_lives(how: str, problem: str) -> None:
    failure = _kernels.broken_self_test(how)
    assert failure.startswith("rows features=")  # the case that uses addition
    assert problem in failure
    assert _kernels.broken_self_test("not") == ""


def test_the_self_test_leaves_signal_handlers_as_they_were() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGILL, lambda number, frame: seen.append(number))
    try:
        assert "SIGILL" in _kernels.broken_self_test("refused")
        os.kill(os.getpid(), signal.SIGILL)
        assert seen == [signal.SIGILL]
    finally:
        signal.signal(signal.SIGILL, before)


def test_units_say_what_they_need_and_why_they_do_not_run() -> None:
    there = set(cpu_features())
    for unit in kernel_units():
        missing = [name for name in unit.needs.split() if name not in there]
        assert unit.is_available == (unit.reason == "") == (not missing)
        assert all(name in unit.reason for name in missing)


def test_a_unit_that_cannot_run_is_refused_with_those_that_can() -> None:
    with pytest.raises(InvalidField, match="portable"):
        unit_named("sse2")
    for unit in kernel_units():
        if not unit.is_available:
            with pytest.raises(InvalidField, match=unit.needs.split()[-1]):
                unit_named(unit.name)
            with pytest.raises(ValueError, match=unit.needs.split()[-1]):
                _kernels.self_test(unit.name)
        else:
            assert unit_named(unit.name) == unit.name


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", programs.TARGETS)
def test_an_emulated_unit_has_the_portable_bits(name: str) -> None:
    target = programs.TARGETS[name]
    if missing := programs.missing_tools(target):
        pytest.skip(missing)
    programs.build(target)
    found = programs.check(target)
    assert found.get("differ") == "0", found["output"]
    assert found["cases"] == str(NUM_CASES)
    # The portable unit itself answers alike on both architectures.
    assert int(found["digest"], 16) == _kernels.answers_digest("portable")
