"""`octavo export`: one stored model to another format, without loss where the target can hold it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from octavo.core.errors import CheckpointError, InvalidField
from octavo.core.units import format_bytes
from octavo.models.load import open_model_checkpoint
from octavo.models.registry import read_spec
from octavo.models.stored import linear_schemes, matrix_shape, stored_checkpoint
from octavo.numerics.scheme import LinearScheme
from octavo.weights.checkpoint import Checkpoint, num_weights
from octavo.weights.compressed_tensors_verification import Verification, verify_with_compressed_tensors
from octavo.weights.dense_writer import DTYPES, write_dense
from octavo.weights.engine_limits import engine_notes
from octavo.weights.formats import find_format, refusals
from octavo.weights.gguf_target import check_gguf_target
from octavo.weights.model_directory import REPORT_NAME, WrittenCheckpoint, check_target, write_json
from octavo.weights.second_reader import verify_directory
from octavo.weights.stored_model import StoredModel

if TYPE_CHECKING:
    from octavo.models.spec import ModelSpec


@dataclass(slots=True)
class ExportReport:
    """What was written. `lossless`: every number is the source's. `dequantized`: modules that the format could not
    hold and that were written dense, because `dtype` was given. Bytes are those of the weight files."""

    source: str
    output: str
    format: str
    lossless: bool
    verification: str
    source_bytes: int
    output_bytes: int
    bits_per_weight: float
    dequantized: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        loss = "every number is the source's" if self.lossless else "numbers were rounded, see the notes"
        lines = [
            f"{self.output}: {self.format}, {loss}",
            f"{format_bytes(self.source_bytes)} -> {format_bytes(self.output_bytes)}, "
            f"{self.bits_per_weight:.3f} bits per weight, everything counted",
            f"verified: {self.verification}",
            *(f"note: {note}" for note in self.notes),
        ]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class ExportJob:
    """One run. `dtype`: what becomes dense is written as; None refuses to make anything dense (format hf: the dtype
    of the config). `file_type`: ggml type to round to; None: as stored. `statistics`: a directory that `calibrate` made
    of the same model; roundings then weigh errors by each input's mean square (llama.cpp's importance matrix)."""

    model: str | Path
    output: Path
    format: str
    dtype: str | None = None
    file_type: str | None = None
    overwrite: bool = False
    statistics: Path | None = None

    def run(self) -> ExportReport:
        target = find_format(self.format)
        self._check_options()
        checkpoint = open_model_checkpoint(self.model)
        self._check_output(checkpoint)
        spec = read_spec(checkpoint.config)
        schemes = linear_schemes(checkpoint)
        shapes = {module: matrix_shape(checkpoint, module) for module in schemes}
        dequantized = self._refused(schemes, shapes)
        stored = stored_checkpoint(checkpoint, spec, dequantized)
        if target.write is not None:
            written = target.write(self.output, stored, overwrite=self.overwrite)
        else:
            written = self._write_other(checkpoint, spec, stored)
        verification = self._verify(spec, stored)
        if verification.verified is False:
            raise CheckpointError(f"{self.output}: does not read back as meant: {verification.verdict}")
        packed = {module: linear for module, linear in schemes.items() if module not in dequantized}
        rounding = [module for module, linear in schemes.items() if linear.inputs is not None]
        lost_inputs = any(module in dequantized or not target.holds_inputs for module in rounding)
        limits = self._limits(spec, packed, shapes)
        report = self._report(checkpoint, written, verification, dequantized, limits, lost_inputs)
        self._carry_over(checkpoint, report)
        return report

    def _limits(
        self, spec: ModelSpec, packed: Mapping[str, LinearScheme], shapes: Mapping[str, tuple[int, int]]
    ) -> list[str]:
        if self.format not in ("gptq", "awq", "compressed-tensors"):
            return []
        return engine_notes(packed, shapes, list(filter(spec.splits_inputs, packed)))

    def _check_options(self) -> None:
        if self.dtype is not None and self.dtype not in DTYPES:
            raise InvalidField("dtype", self.dtype, f"one of {', '.join(DTYPES)}")
        if self.file_type is not None and self.format != "gguf":
            raise InvalidField("type", self.file_type, "ggml types are for format gguf")
        if self.statistics is not None and self.file_type is None:
            raise InvalidField("statistics", str(self.statistics), "weigh the rounding to a ggml type; give a type")
        if self.dtype is not None and self.format == "gguf":
            raise InvalidField("dtype", self.dtype, "format gguf rounds by a type of its own, such as F16 or Q8_0")

    def _check_output(self, checkpoint: Checkpoint) -> None:
        if self.output.absolute().resolve() == Path(checkpoint.source).absolute().resolve():
            raise InvalidField("output", str(self.output), "is the source itself; name another")
        (check_gguf_target if self.format == "gguf" else check_target)(self.output, self.overwrite)

    def _refused(
        self, schemes: Mapping[str, LinearScheme], shapes: Mapping[str, tuple[int, int]]
    ) -> dict[str, torch.dtype]:
        """Modules that will be dense. Raises `InvalidField` where there are some and no dtype was given."""
        refused = refusals(self.format, schemes, shapes)
        if refused and self.dtype is None:
            module, reason = next(iter(refused.items()))
            more = f" ({len(refused) - 1} more modules are refused)" if len(refused) > 1 else ""
            expected = f"{module}: {reason}{more}; with a dtype such modules are written dense (float32 loses nothing)"
            raise InvalidField("format", self.format, expected)
        return {} if self.dtype is None else dict.fromkeys(refused, DTYPES[self.dtype])

    def _torch_dtype(self, checkpoint: Checkpoint) -> torch.dtype:
        named = self.dtype or checkpoint.config.get("dtype") or checkpoint.config.get("torch_dtype") or "bfloat16"
        return DTYPES.get(str(named), torch.bfloat16)

    def _write_other(self, checkpoint: Checkpoint, spec: ModelSpec, stored: StoredModel) -> WrittenCheckpoint:
        if self.format == "hf":
            return write_dense(self.output, stored, self._torch_dtype(checkpoint), overwrite=self.overwrite)
        from octavo.models.gguf_export import export_gguf

        importance = self._importance(checkpoint)
        return export_gguf(self.output, spec, stored, self.file_type, importance=importance, overwrite=self.overwrite)

    def _importance(self, checkpoint: Checkpoint) -> dict[str, Tensor] | None:
        if self.statistics is None:
            return None
        from octavo.quantize.calibrate import model_key
        from octavo.quantize.statistics_cache import StatisticsCache

        return StatisticsCache.open(self.statistics, model_key(checkpoint)).mean_squares()

    def _verify(self, spec: ModelSpec, stored: StoredModel) -> Verification:
        if self.format == "compressed-tensors":
            return verify_with_compressed_tensors(self.output)
        if self.format == "gguf":
            from octavo.models.gguf_verification import verify_gguf

            return verify_gguf(self.output, spec, stored, exact=self.file_type is None)
        return verify_directory(self.output, stored)

    def _report(
        self,
        checkpoint: Checkpoint,
        written: WrittenCheckpoint,
        verification: Verification,
        dequantized: Mapping[str, torch.dtype],
        limits: list[str],
        lost_inputs: bool,
    ) -> ExportReport:
        dense_dtype = self._torch_dtype(checkpoint)
        is_dense = self.format == "hf" or bool(dequantized)
        exact = not lost_inputs and not (is_dense and dense_dtype != torch.float32)
        if self.format == "gguf":
            exact = exact and not verification.max_difference
        notes = [*checkpoint.notes, *written.notes, *limits]
        if self.format == "hf" and dense_dtype != torch.float32:
            dtype = str(dense_dtype).removeprefix("torch.")
            notes.insert(0, f"all numbers are written as {dtype}; float32 would hold every one")
        if dequantized:
            notes.insert(
                0, f"written dense, as {self.dtype}, because {self.format} cannot hold it: {_some(dequantized)}"
            )
        return ExportReport(
            source=str(self.model),
            output=str(self.output),
            format=self.format,
            lossless=exact,
            verification=verification.verdict,
            source_bytes=checkpoint.num_bytes,
            output_bytes=written.total_bytes,
            bits_per_weight=8 * written.total_bytes / num_weights(checkpoint),
            dequantized=list(dequantized),
            notes=notes,
        )

    def _carry_over(self, checkpoint: Checkpoint, report: ExportReport) -> None:
        """`octavo.json` beside the weights: how the source was made; what it lost only if nothing was lost since."""
        if self.format == "gguf":
            return
        file = Path(checkpoint.source) / REPORT_NAME
        earlier = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {"schema_version": 1}
        quality = earlier.get("quality") if report.lossless else None
        if isinstance(quality, dict):
            quality = {**quality, "weight_bytes": report.output_bytes, "bits_per_weight": report.bits_per_weight}
        write_json(self.output / REPORT_NAME, {**earlier, "quality": quality, "export": report.to_dict()})


def _some(names: Mapping[str, Any], limit: int = 3) -> str:
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(list(names)[:limit]) + rest
