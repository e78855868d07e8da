"""The one model of the comparison in every form a peer reads, made from the same stored weights."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.environment import ROOT, Environment, Say, SetupFailed

REPOSITORY = Path(__file__).parents[2]
MAKE_LIMIT_SECONDS = 3600
#: llama.cpp's `enum llama_ftype`.
GGUF_TYPES = {"F16": 1, "Q4_0": 2}


@dataclass(frozen=True)
class Models:
    """Forms of `source`, a catalog name or a GGUF file. `octavo` is our quantized checkpoint (None: made here)."""

    source: str = "smollm2-135m"
    octavo: Path | None = None

    @property
    def directory(self) -> Path:
        return ROOT / "models" / Path(self.source).name

    @property
    def octavo_4bit(self) -> Path:
        return self.octavo or self.directory / "4bit-group64"

    @property
    def hugging_face(self) -> Path:
        """A plain float32 directory: safetensors, config, tokenizer."""
        return self.directory / "hugging-face"

    @property
    def stored_gguf(self) -> Path:
        """The source itself, or where its catalog entry keeps its GGUF file."""
        from octavo.models.catalog import resolve

        place = Path(resolve(self.source))
        return place if place.is_file() else next(iter(sorted(place.glob("*.gguf"))), place)

    def gguf(self, kind: str) -> Path:
        """`F16` or `Q4_0`."""
        return self.directory / f"{kind.lower()}.gguf"

    def set_up(self, llama_cpp: Environment, say: Say) -> None:
        """Make every form that is not there; a form that cannot be made is said and left out."""
        self.write_sources(llama_cpp, say)
        if self.octavo is None:
            self._make(self.octavo_4bit, self._quantize, say)

    def write_sources(self, llama_cpp: Environment, say: Say) -> None:
        """What quantizers start from: every form but our own checkpoint."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._make(self.hugging_face, lambda: write_hugging_face(self.source, self.hugging_face), say)
        for kind in GGUF_TYPES:
            self._make(self.gguf(kind), lambda kind=kind: self._requantize(llama_cpp, kind), say)

    def _make(self, path: Path, make: Callable[[], None], say: Say) -> None:
        if path.exists():
            say(f"{path}: ready")
            return
        say(f"{path}: making it")
        try:
            make()
        except (SetupFailed, subprocess.SubprocessError, OSError) as reason:
            say(f"{path}: cannot be made: {reason}")

    def _requantize(self, llama_cpp: Environment, kind: str) -> None:
        if (reason := llama_cpp.why_missing()) is not None:
            raise SetupFailed(f"llama.cpp is {reason}")
        target = self.gguf(kind)
        partial = target.with_suffix(".partial")
        command = requantize_command(llama_cpp, self.stored_gguf, partial, GGUF_TYPES[kind])
        subprocess.run(command, check=True, timeout=MAKE_LIMIT_SECONDS, cwd=REPOSITORY)
        partial.rename(target)

    def _quantize(self) -> None:
        command = [sys.executable, "-m", "octavo.cli.main", "quantize", self.source, "-o", str(self.octavo_4bit)]
        command += ["--bits", "4", "--group", "64"]
        subprocess.run(command, check=True, timeout=MAKE_LIMIT_SECONDS)


def requantize_command(llama_cpp: Environment, source: Path, target: Path, file_type: int) -> list[str]:
    """llama.cpp's own quantizer, to a type of its `enum llama_ftype`; to be run in the repository."""
    worker = [str(llama_cpp.python), "-m", "benchmarks.peers.workers.requantize"]
    return [*worker, str(source), str(target), str(file_type)]


def write_hugging_face(source: str, target: Path) -> None:
    """The weights of `source` as a float32 Hugging Face directory that other libraries load."""
    import json

    from safetensors.torch import save_file

    from octavo.models.load import open_model_checkpoint

    checkpoint = open_model_checkpoint(source)
    partial = target.with_suffix(".partial")
    partial.mkdir(parents=True, exist_ok=True)
    tensors = {name: checkpoint.get(name).clone() for name in checkpoint.names()}
    save_file(tensors, partial / "model.safetensors", metadata={"format": "pt"})
    (partial / "config.json").write_text(json.dumps({**checkpoint.config, "dtype": "float32"}))
    checkpoint.tokenizer().save(partial)
    partial.rename(target)
