"""What calibration found out about a model, on disk: methods and bits can be compared without running it again.

`<directory>/` holds `key.json` and one `block-NNNN.safetensors` per block: for every distinct input of its linears
the upper triangle of the Hessian, float32, and mean and largest |x|. Linears that read the same value share one entry.
While it is being filled, `hidden-NNNN.safetensors` holds what enters the first unfinished block. Every file is written
whole or not at all, so a killed run goes on where it was.

The statistics are of the source model: every linear's input as the source itself computes it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from torch import Tensor

from octavo.core.errors import CapacityError, CheckpointError, InvalidField
from octavo.core.storage import write_json
from octavo.core.units import format_bytes
from octavo.models.decoder import DecoderModel, decoder_layer
from octavo.ops.base import Linear
from octavo.ops.reference.batch import whole_prompts
from octavo.quantize.bulk_ops import BulkOps
from octavo.quantize.journal import KEY_FILE, read_key, write_tensors
from octavo.quantize.observer import ObserverOps
from octavo.quantize.statistics import InputStatistics

if TYPE_CHECKING:
    from octavo.models.spec import ModelSpec
    from octavo.quantize.calibration import Calibration

#: Raised by one when the files' meaning changes.
_FORMAT = 1

#: A block's statistics by module name; linears with the same input share one object.
BlockStatistics = Mapping[str, InputStatistics]
#: Called with (finished blocks, all blocks).
Progress = Callable[[int, int], None]


def statistics_directory() -> Path:
    """Where statistics live by their key: `~/.cache/octavo/statistics`."""
    return Path.home() / ".cache" / "octavo" / "statistics"


@dataclass(frozen=True, slots=True)
class StatisticsKey:
    """What statistics are of: a model (`journal.source_key` of its files) and the tokens it read."""

    model: str
    tokens: str
    num_blocks: int

    @property
    def sha256(self) -> str:
        return hashlib.sha256(f"{_FORMAT} {self.model} {self.tokens} {self.num_blocks}".encode()).hexdigest()


class StatisticsCache:
    """One model's statistics on one text. `calibration` describes the text (`Calibration.to_dict`)."""

    def __init__(self, directory: Path, key: StatisticsKey, calibration: Mapping[str, Any]) -> None:
        self.directory, self.key, self.calibration = directory, key, dict(calibration)
        self.num_finished_blocks = 0
        while self._block_file(self.num_finished_blocks).exists():
            self.num_finished_blocks += 1

    @classmethod
    def create(
        cls, key: StatisticsKey, calibration: Mapping[str, Any], directory: Path | None = None
    ) -> StatisticsCache:
        """Begin, or go on with what is there. `directory` None is the key's own place in the cache. Raises
        `InvalidField` for a directory that holds anything else."""
        directory = directory or statistics_directory() / key.sha256[:16]
        if directory.exists() and any(directory.iterdir()):
            found = read_key(directory)
            if found is None or found.get("sha256") != key.sha256:
                what = "no statistics" if found is None else "statistics of another model or text"
                raise InvalidField("output", str(directory), f"holds {what}; name another directory")
            return cls(directory, key, calibration)
        directory.mkdir(parents=True, exist_ok=True)
        fields = {"sha256": key.sha256, "model": key.model, "tokens": key.tokens, "num_blocks": key.num_blocks}
        content = {"format": _FORMAT, **fields, "calibration": dict(calibration)}
        write_json(directory / KEY_FILE, content)
        return cls(directory, key, calibration)

    @classmethod
    def open(cls, directory: Path, model: str) -> StatisticsCache:
        """Finished statistics of the model with this key. Raises `InvalidField` where they are not."""
        content = read_key(directory)
        if content is None or content.get("format") != _FORMAT:
            expected = "holds no statistics; `octavo calibrate MODEL -o DIR` makes them, `auto` finds or makes them"
            raise InvalidField("statistics", str(directory), expected)
        if content["model"] != model:
            raise InvalidField("statistics", str(directory), "are of another model, or its files have changed since")
        key = StatisticsKey(content["model"], content["tokens"], content["num_blocks"])
        cache = cls(directory, key, content["calibration"])
        if not cache.is_complete:
            done = f"{cache.num_finished_blocks} of {key.num_blocks} blocks are there"
            raise InvalidField("statistics", str(directory), f"{done}; run the same `octavo calibrate` again to finish")
        return cache

    @property
    def is_complete(self) -> bool:
        return self.num_finished_blocks >= self.key.num_blocks

    @property
    def num_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.directory.iterdir())

    def block(self, index: int) -> BlockStatistics:
        """A finished block's. Raises `CheckpointError` for a damaged file."""
        return _read_block(self._block_file(index))

    def mean_squares(self) -> dict[str, Tensor]:
        """Of each input `[inputs]` by module name: what roundings without a Hessian weigh their errors by."""
        blocks = (self.block(index) for index in range(self.key.num_blocks))
        return {name: entry.hessian.diagonal().clone() for block in blocks for name, entry in block.items()}

    def record(self, statistics: BlockStatistics, hidden: Tensor) -> None:
        """Append the next block's, and the states `[tokens, hidden]` that leave it."""
        index = self.num_finished_blocks
        if index + 1 < self.key.num_blocks:
            write_tensors(self._hidden_file(index + 1), {"hidden": hidden.contiguous()})
        write_tensors(self._block_file(index), *_as_tensors(statistics))
        self.num_finished_blocks = index + 1
        self._hidden_file(index).unlink(missing_ok=True)

    def hidden(self) -> Tensor:
        """What enters the first unfinished block."""
        with safe_open(self._hidden_file(self.num_finished_blocks), framework="pt") as file:
            hidden: Tensor = file.get_tensor("hidden").clone()
        return hidden

    def _block_file(self, index: int) -> Path:
        return self.directory / f"block-{index:04d}.safetensors"

    def _hidden_file(self, index: int) -> Path:
        return self.directory / f"hidden-{index:04d}.safetensors"


def collect_statistics(
    model: DecoderModel,
    calibration: Calibration,
    cache: StatisticsCache,
    progress: Progress = lambda done, total: None,
) -> None:
    """Run `model` once over the text, block by block, and fill `cache`; nothing is run if it is filled already."""
    if cache.is_complete:
        return
    batch = whole_prompts(calibration.segments)
    with torch.inference_mode():
        hidden = cache.hidden() if cache.num_finished_blocks else BulkOps().embed(model.embedding, batch)
        for layer in model.layers[cache.num_finished_blocks :]:
            block: dict[str, InputStatistics] = {}

            def keep(linear: Linear, statistics: InputStatistics, block: dict[str, InputStatistics] = block) -> Linear:
                block[linear.name] = statistics
                return linear

            hidden = decoder_layer(ObserverOps(keep, calibration.mask), layer, hidden, batch)
            cache.record(block, hidden)
            progress(cache.num_finished_blocks, len(model.layers))


def statistics_bytes(spec: ModelSpec) -> int:
    """Bytes that a model's statistics take on disk."""
    total = 0
    for index, layer in enumerate(spec.layers):
        num_mlps = 1 if layer.experts is None else layer.experts.num_experts
        inputs = [spec.hidden_size, spec.num_heads * spec.head_dim]
        inputs += [spec.hidden_size, spec.mlp_size(index)] * num_mlps
        total += sum(4 * (size * (size + 1) // 2 + 2 * size) for size in inputs)
    return total


def check_room(directory: Path, num_bytes: int) -> None:
    """Raise `CapacityError` with both figures if the disk under `directory` has less than `num_bytes` free."""
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free < num_bytes:
        raise CapacityError(f"statistics take {format_bytes(num_bytes)}, {format_bytes(free)} are free at {existing}")


def _as_tensors(statistics: BlockStatistics) -> tuple[dict[str, Tensor], dict[str, str]]:
    """And the metadata that belong to them in a file."""
    numbers: dict[int, int] = {}
    tensors: dict[str, Tensor] = {}
    inputs: list[dict[str, int]] = []
    for entry in statistics.values():
        if id(entry) in numbers:
            continue
        number = numbers[id(entry)] = len(inputs)
        rows, columns = _upper_triangle(len(entry.hessian))
        tensors[f"{number}.hessian"] = entry.hessian[rows, columns]
        tensors[f"{number}.mean_magnitude"] = entry.mean_magnitude
        tensors[f"{number}.largest_magnitude"] = entry.largest_magnitude
        inputs.append({"num_tokens": entry.num_tokens, "num_lent_tokens": entry.num_lent_tokens})
    modules = {name: numbers[id(entry)] for name, entry in statistics.items()}
    # One entry only: safetensors writes several in an order that changes from run to run.
    return tensors, {"contents": json.dumps({"modules": modules, "inputs": inputs})}


def _read_block(file: Path) -> BlockStatistics:
    try:
        with safe_open(file, framework="pt") as stored:
            contents = json.loads(stored.metadata()["contents"])
            entries = [
                InputStatistics.restore(
                    _symmetric(stored.get_tensor(f"{number}.hessian")),
                    stored.get_tensor(f"{number}.mean_magnitude").clone(),
                    stored.get_tensor(f"{number}.largest_magnitude").clone(),
                    **counts,
                )
                for number, counts in enumerate(contents["inputs"])
            ]
    except Exception as error:
        raise CheckpointError(f"{file}: damaged ({error}); delete {file.parent} and calibrate again") from error
    return {name: entries[number] for name, number in contents["modules"].items()}


@lru_cache(maxsize=4)
def _upper_triangle(size: int) -> tuple[Tensor, Tensor]:
    """Row and column of each stored element, row by row."""
    rows, columns = torch.triu_indices(size, size)
    return rows, columns


def _symmetric(triangle: Tensor) -> Tensor:
    """The whole matrix of an upper triangle of n (n + 1) / 2 elements."""
    size = int(((8 * len(triangle) + 1) ** 0.5 - 1) / 2 + 0.5)
    rows, columns = _upper_triangle(size)
    matrix = torch.empty(size, size)
    matrix[rows, columns] = triangle
    matrix[columns, rows] = triangle
    return matrix
