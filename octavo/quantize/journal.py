"""The journal: finished blocks on disk, so that a killed run goes on where it was, to the same bits.

`<output>.journal/` holds `key.json`, one `block-NNNN.safetensors` per finished block and `hidden-NNNN.safetensors`,
the hidden states that enter block NNNN. Every file is written beside its place, synced, then renamed: a file that
is there is whole. A block's file is written after the hidden states that follow it, so it also vouches for them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from octavo.numerics.packed_tensor import PackedTensor
from octavo.numerics.scheme import IntegerScheme
from octavo.quantize.result import ModuleReport, QuantizedWeight

_KEY_FILE = "key.json"


class Journal:
    """One run's journal. `num_finished_blocks` says where to go on; `discarded` why an old journal was not used."""

    def __init__(self, directory: Path, key: Mapping[str, Any]) -> None:
        """Open or begin. A journal of another key (source, recipe, calibration, library versions, threads) is
        deleted; `discarded` names the fields that differ."""
        self.directory = directory
        self.discarded: str | None = None
        wanted = json.loads(json.dumps(key))
        found = _read_key(directory)
        if found != wanted:
            if directory.exists():
                self.discarded = _difference(found, wanted)
                shutil.rmtree(directory)
            directory.mkdir(parents=True)
            _write_atomically(directory / _KEY_FILE, json.dumps(wanted, indent=1).encode())
        self.num_finished_blocks = 0
        while self._block_file(self.num_finished_blocks).exists():
            self.num_finished_blocks += 1

    def record(self, weights: Mapping[str, QuantizedWeight], hidden: Tensor | None) -> None:
        """Append the next block: its quantized modules, and the hidden states `[tokens, hidden]` that leave it."""
        index = self.num_finished_blocks
        if hidden is not None:
            _write_atomically(self._hidden_file(index + 1), save({"hidden": hidden.contiguous()}))
        _write_atomically(self._block_file(index), _serialize(weights))
        self.num_finished_blocks = index + 1
        self._hidden_file(index).unlink(missing_ok=True)

    def block(self, index: int) -> dict[str, QuantizedWeight]:
        """The quantized modules of a finished block, by module name."""
        return _deserialize(self._block_file(index))

    def hidden(self) -> Tensor:
        """The hidden states that enter the first unfinished block."""
        with safe_open(self._hidden_file(self.num_finished_blocks), framework="pt") as file:
            hidden: Tensor = file.get_tensor("hidden").clone()
        return hidden

    def remove(self) -> None:
        shutil.rmtree(self.directory)

    def _block_file(self, index: int) -> Path:
        return self.directory / f"block-{index:04d}.safetensors"

    def _hidden_file(self, index: int) -> Path:
        return self.directory / f"hidden-{index:04d}.safetensors"


def source_key(files: list[Path]) -> str:
    """Identity of a source's files: names, bytes and modification times (contents are not read)."""
    digest = hashlib.sha256()
    for file in sorted(files):
        status = file.stat()
        digest.update(f"{file.name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _read_key(directory: Path) -> dict[str, Any] | None:
    try:
        key: dict[str, Any] = json.loads((directory / _KEY_FILE).read_text())
    except (OSError, ValueError):
        return None
    return key


def _difference(found: dict[str, Any] | None, wanted: dict[str, Any]) -> str:
    if found is None:
        return "it holds no readable key"
    names = [name for name in {**found, **wanted} if found.get(name) != wanted.get(name)]
    return f"{', '.join(names)} changed"


def _write_atomically(file: Path, content: bytes) -> None:
    partial = file.with_name(file.name + ".partial")
    with partial.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(file)


def _serialize(weights: Mapping[str, QuantizedWeight]) -> bytes:
    tensors: dict[str, Tensor] = {}
    modules: dict[str, Any] = {}
    for name, weight in weights.items():
        packed = weight.packed
        tensors[f"{name}.words"], tensors[f"{name}.scale"] = packed.words, packed.scale
        if packed.zero_point is not None:
            tensors[f"{name}.zero_point"] = packed.zero_point
        scheme = packed.scheme
        modules[name] = {
            "scheme": [scheme.bits, scheme.group_size, scheme.symmetric],
            "shape": list(packed.shape),
            "report": weight.report.to_dict(),
        }
    return save({name: tensor.contiguous() for name, tensor in tensors.items()}, {"modules": json.dumps(modules)})


def _deserialize(file: Path) -> dict[str, QuantizedWeight]:
    with safe_open(file, framework="pt") as stored:
        tensors = {name: stored.get_tensor(name).clone() for name in stored.keys()}  # noqa: SIM118 (not a mapping)
        modules = json.loads(stored.metadata()["modules"])
    weights = {}
    for name, fields in modules.items():
        packed = PackedTensor(
            words=tensors[f"{name}.words"],
            scale=tensors[f"{name}.scale"],
            zero_point=tensors.get(f"{name}.zero_point"),
            scheme=IntegerScheme(*fields["scheme"]),
            shape=tuple(fields["shape"]),
        )
        weights[name] = QuantizedWeight(packed, ModuleReport.from_dict(fields["report"]))
    return weights
