"""The journal: finished blocks on disk, so that a killed run goes on where it was, to the same bits.

`<output>.journal/` holds `key.json`, one `block-NNNN.safetensors` per finished block and `hidden-NNNN.safetensors`,
the hidden states that enter block NNNN. Every file is written beside its place, synced, then renamed: a file that
is there is whole. A block's file is written after the hidden states that follow it, so it also vouches for them.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from octavo.core.storage import replacing, write_json
from octavo.numerics.activations import ActivationFormat, ActivationScheme, InputQuantizer
from octavo.numerics.float_tensor import FloatTensor
from octavo.numerics.kv_scales import KvScales
from octavo.numerics.packed_tensor import PackedTensor
from octavo.numerics.scheme import scheme_fields, scheme_from_fields
from octavo.quantize.result import BlockResult, ModuleReport, QuantizedWeight

KEY_FILE = "key.json"
#: A training's state is many tensors, some at a time in a file, and these fields.
_FIELDS_FILE = "fields.json"
_SHARD_BYTES = 128 << 20
#: Names in a block's file: changed dense tensors by their own name, a module's static input scale, and the weights
#: behind its codes.
_DENSE, _INPUT_SCALE, _LATENT = "dense:", "input_scale", "latent"


class Journal:
    """One run's journal. `num_finished_blocks` says where to go on; `discarded` why an old journal was not used."""

    def __init__(self, directory: Path, key: Mapping[str, Any]) -> None:
        """Open or begin. A journal of another key (source, recipe, calibration, library versions, threads) is
        deleted; `discarded` names the fields that differ."""
        self.directory = directory
        self.discarded: str | None = None
        wanted = json.loads(json.dumps(key))
        found = read_key(directory)
        if found != wanted:
            if directory.exists():
                self.discarded = _difference(found, wanted)
                shutil.rmtree(directory)
            directory.mkdir(parents=True)
            write_json(directory / KEY_FILE, wanted)
        self.num_finished_blocks = 0
        while self._block_file(self.num_finished_blocks).exists():
            self.num_finished_blocks += 1

    def record(self, block: BlockResult, hidden: Mapping[str, Tensor]) -> None:
        """Append the next block, and the hidden states `[tokens, hidden]` that leave it, by name (none: no method
        needs any)."""
        index = self.num_finished_blocks
        if hidden:
            states = {name: tensor.contiguous() for name, tensor in hidden.items()}
            write_tensors(self._hidden_file(index + 1), states)
        write_tensors(self._block_file(index), *_as_tensors(block))
        self.num_finished_blocks = index + 1
        self._hidden_file(index).unlink(missing_ok=True)

    def block(self, index: int) -> BlockResult:
        """What a finished block left."""
        return _from_tensors(self._block_file(index))

    def hidden(self) -> dict[str, Tensor]:
        """The hidden states that enter the first unfinished block."""
        with safe_open(self._hidden_file(self.num_finished_blocks), framework="pt") as file:
            return {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a mapping)

    def save_state(self, name: str, step: int, tensors: Mapping[str, Tensor], fields: Mapping[str, Any]) -> None:
        """Where a training of the whole model stands after `step`; older states of `name` are deleted. Written shard
        by shard, so that no second copy of all tensors is ever in memory."""
        older = self._states(name)
        partial = self.directory / f"{name}-{step:06d}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        for number, shard in enumerate(_shards(tensors)):
            write_tensors(partial / f"{number:04d}.safetensors", shard)
        write_json(partial / _FIELDS_FILE, fields)
        partial.replace(partial.with_suffix(""))
        for directory in older:
            shutil.rmtree(directory)

    def state(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """What `save_state` stored last; None if nothing was."""
        states = self._states(name)
        if not states:
            return None
        tensors: dict[str, Tensor] = {}
        for file in sorted(states[-1].glob("*.safetensors")):
            with safe_open(file, framework="pt") as stored:
                tensors |= {key: stored.get_tensor(key).clone() for key in stored.keys()}  # noqa: SIM118
        return tensors, json.loads((states[-1] / _FIELDS_FILE).read_text())

    def _states(self, name: str) -> list[Path]:
        """Whole ones, the latest last."""
        return sorted(each for each in self.directory.glob(f"{name}-*") if each.suffix != ".partial")

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


def read_key(directory: Path) -> dict[str, Any] | None:
    """What `directory` is of; None if it says nothing readable."""
    try:
        key: dict[str, Any] = json.loads((directory / KEY_FILE).read_text())
    except (OSError, ValueError):
        return None
    return key


def _difference(found: dict[str, Any] | None, wanted: dict[str, Any]) -> str:
    if found is None:
        return "it holds no readable key"
    names = [name for name in {**found, **wanted} if found.get(name) != wanted.get(name)]
    return f"{', '.join(names)} changed"


def write_tensors(file: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Whole or not at all, from the tensors' own memory: no second copy of the states of a whole text is made."""
    with replacing(file) as partial:
        save_file(dict(tensors), partial, metadata)


def _shards(tensors: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """All of them, some at a time."""
    shard: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        shard[name] = tensor.contiguous()
        if sum(each.nbytes for each in shard.values()) > _SHARD_BYTES:
            yield shard
            shard = {}
    if shard:
        yield shard


def _as_tensors(block: BlockResult) -> tuple[dict[str, Tensor], dict[str, str]]:
    """And the metadata that belong to them in a file."""
    tensors = {f"{_DENSE}{name}": tensor for name, tensor in block.dense.items()}
    modules: dict[str, Any] = {}
    for name, weight in block.weights.items():
        packed, inputs = weight.packed, weight.inputs
        tensors |= {f"{name}.{part}": tensor for part, tensor in packed.parts().items()}
        modules[name] = {
            "scheme": scheme_fields(packed.scheme),
            "shape": list(packed.shape),
            "report": weight.report.to_dict(),
            "inputs": None if inputs is None else asdict(inputs.scheme),
        }
        if inputs is not None and inputs.scale is not None:
            tensors[f"{name}.{_INPUT_SCALE}"] = inputs.scale
        if weight.latent is not None:
            tensors[f"{name}.{_LATENT}"] = weight.latent
    kv_scales = None if block.kv_scales is None else asdict(block.kv_scales)
    metadata = {"modules": json.dumps(modules), "kv_scales": json.dumps(kv_scales)}
    return {name: tensor.clone() for name, tensor in tensors.items()}, metadata  # fused members share parts


def _from_tensors(file: Path) -> BlockResult:
    with safe_open(file, framework="pt") as stored:
        tensors = {name: stored.get_tensor(name).clone() for name in stored.keys()}  # noqa: SIM118 (not a mapping)
        modules = json.loads(stored.metadata()["modules"])
        kv_scales = json.loads(stored.metadata()["kv_scales"])
    weights = {}
    for name, fields in modules.items():
        parts = {key.removeprefix(f"{name}."): tensor for key, tensor in tensors.items() if key.startswith(f"{name}.")}
        inputs, scale, latent = None, parts.pop(_INPUT_SCALE, None), parts.pop(_LATENT, None)
        if fields["inputs"] is not None:
            scheme = ActivationScheme(ActivationFormat(fields["inputs"]["format"]), fields["inputs"]["dynamic"])
            inputs = InputQuantizer(scheme, scale)
        kind = PackedTensor if fields["scheme"]["kind"] == "integer" else FloatTensor
        packed = kind.from_parts(parts, scheme_from_fields(fields["scheme"]), tuple(fields["shape"]))
        weights[name] = QuantizedWeight(packed, ModuleReport.from_dict(fields["report"]), inputs, latent)
    return BlockResult(
        weights,
        {name.removeprefix(_DENSE): tensor for name, tensor in tensors.items() if name.startswith(_DENSE)},
        None if kv_scales is None else KvScales(**{**kv_scales, **_tuples(kv_scales, "keys", "values")}),
    )


def _tuples(fields: dict[str, Any], *names: str) -> dict[str, tuple[float, ...]]:
    return {name: tuple(fields[name]) for name in names}
