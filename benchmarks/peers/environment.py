"""A peer's own virtual environment: made once, remade when its recipe changes, and honest about being absent."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

#: Where environments and the peers' models live.
ROOT = Path.home() / ".cache" / "octavo" / "peers"
#: A GPU build of a library is several gigabytes that no CPU comparison needs.
UNWANTED = ("nvidia", "cuda")
SETUP_LIMIT_SECONDS = 5400

Say = Callable[[str], None]


class SetupFailed(Exception):
    """Why an environment could not be made, in a line or two."""


@dataclass(frozen=True)
class Environment:
    """`requirements` installed by pip into `ROOT/<name>`; `build_variables` are set while it installs.

    `python_of_this_project` instead uses the interpreter that runs this code.
    """

    name: str
    requirements: tuple[str, ...] = ()
    pip_options: tuple[str, ...] = ()
    build_variables: Mapping[str, str] = field(default_factory=dict)
    python_of_this_project: bool = False

    @property
    def directory(self) -> Path:
        return ROOT / self.name

    @property
    def python(self) -> Path:
        return Path(sys.executable) if self.python_of_this_project else self.directory / "bin" / "python"

    @property
    def log(self) -> Path:
        return ROOT / f"{self.name}.log"

    def why_missing(self) -> str | None:
        """None when the environment can be used, else the reason for people."""
        if self.python_of_this_project:
            return None
        if self._failure.exists():
            return f"set-up failed: {self._failure.read_text().strip()} (log: {self.log})"
        if self._made() is None:
            return f"not set up; run: python -m benchmarks.peers setup {self.name}"
        if self._made() != self._recipe():
            return f"set up for another recipe; run: python -m benchmarks.peers setup {self.name}"
        return None

    def set_up(self, say: Say, num_jobs: int) -> None:
        """Make the environment unless it is there. Raises `SetupFailed`, and remembers the reason."""
        if self.python_of_this_project or (self._made() == self._recipe() and not self._failure.exists()):
            say(f"{self.name}: ready")
            return
        self._failure.unlink(missing_ok=True)
        try:
            self._make(say, num_jobs)
        except SetupFailed as reason:
            ROOT.mkdir(parents=True, exist_ok=True)
            self._failure.write_text(str(reason))
            raise
        self._stamp.write_text(json.dumps(self._recipe(), indent=1))
        say(f"{self.name}: ready")

    @property
    def _stamp(self) -> Path:
        return self.directory / "made-of.json"

    @property
    def _failure(self) -> Path:
        return ROOT / f"{self.name}.failure"

    def _recipe(self) -> dict[str, object]:
        # Every checkout of this repository shares the environments: where it lies is no part of the recipe.
        here = str(Path(__file__).parent)
        return {
            "requirements": list(self.requirements),
            "pip_options": list(self.pip_options),
            "build_variables": {name: value.replace(here, ".") for name, value in self.build_variables.items()},
            "python": sys.version,
        }

    def _made(self) -> object:
        return json.loads(self._stamp.read_text()) if self._stamp.exists() else None

    def _make(self, say: Say, num_jobs: int) -> None:
        say(f"{self.name}: installing {' '.join(self.requirements)} (log: {self.log})")
        shutil.rmtree(self.directory, ignore_errors=True)
        ROOT.mkdir(parents=True, exist_ok=True)
        self.log.write_text("")
        self._logged([sys.executable, "-m", "venv", str(self.directory)], num_jobs)
        self._refuse_gpu_builds(num_jobs)
        self._pip(num_jobs)

    def _refuse_gpu_builds(self, num_jobs: int) -> None:
        report = ROOT / f"{self.name}.resolved.json"
        self._pip(num_jobs, "--dry-run", "--quiet", "--report", str(report))
        names = [each["metadata"]["name"].lower() for each in json.loads(report.read_text())["install"]]
        report.unlink()
        unwanted = [name for name in names if name.startswith(UNWANTED)]
        if unwanted:
            raise SetupFailed(f"pip would install a GPU build ({', '.join(unwanted[:3])}); not wanted on a CPU")

    def _pip(self, num_jobs: int, *options: str) -> None:
        pip = [str(self.python), "-m", "pip", "--disable-pip-version-check", "install", "--progress-bar", "off"]
        self._logged([*pip, *options, *self.pip_options, *self.requirements], num_jobs)

    def _logged(self, command: list[str], num_jobs: int) -> None:
        variables = {**os.environ, **self.build_variables, "CMAKE_BUILD_PARALLEL_LEVEL": str(num_jobs)}
        with self.log.open("a") as log:
            log.write(f"$ {' '.join(command)}\n")
            log.flush()
            try:
                done = subprocess.run(
                    command, stdout=log, stderr=log, env=variables, check=False, timeout=SETUP_LIMIT_SECONDS
                )
            except subprocess.TimeoutExpired:
                raise SetupFailed(f"{command[0]} took longer than {SETUP_LIMIT_SECONDS} s") from None
        if done.returncode:
            raise SetupFailed(f"{_last_error(self.log)}")


def _last_error(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith(("error", "fatal"))]
    return (errors or lines or ["no output"])[-1][:300]
