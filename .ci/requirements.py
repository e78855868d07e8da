"""Prints requirements of pyproject.toml for pip, one a line; the Makefile installs them step by step.

`runtime` and `build` are the tables of that meaning, any other name is an extra. `build` adds cmake and ninja where
the machine has none that is new enough (without build isolation pip does not do that itself).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

OLDEST_CMAKE = (3, 20)


def requirements(kind: str) -> list[str]:
    """The lines for `runtime`, `build` or an extra."""
    project = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text())
    if kind == "runtime":
        return project["project"]["dependencies"]
    if kind == "build":
        return project["build-system"]["requires"] + missing_tools()
    return project["project"]["optional-dependencies"][kind]


def missing_tools() -> list[str]:
    """cmake and ninja, unless they are there."""
    tools = []
    if cmake_version() < OLDEST_CMAKE:
        tools.append("cmake>=" + ".".join(map(str, OLDEST_CMAKE)))
    if shutil.which("ninja") is None:
        tools.append("ninja")
    return tools


def cmake_version() -> tuple[int, ...]:
    """Of the cmake on the path; (0,) without one."""
    program = shutil.which("cmake")
    if program is None:
        return (0,)
    printed = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"version (\d+)\.(\d+)", printed)
    return (int(found[1]), int(found[2])) if found else (0,)


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1])))
