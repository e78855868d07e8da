"""A second opinion on a written checkpoint: the compressed-tensors package decodes every module, and we compare.

It parses the config, matches modules to schemes, unpacks and dequantizes with its own code; only the file bytes and
the torch class of each module are shared with ours.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from octavo.core.errors import CheckpointError
from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.weights.compressed_tensors_config import HEAD_MODULE, ModuleClass, module_class
from octavo.weights.compressed_tensors_directory import CompressedTensorsDirectory

PACKAGE = "compressed_tensors"
NOT_INSTALLED = "not verified: package compressed-tensors is not installed"


@dataclass(frozen=True, slots=True)
class Verification:
    """`verdict` is written for people. `verified` None: the package is not there to ask.

    `worst_module` has the largest difference `max_difference`, both None when nothing was compared.
    """

    verified: bool | None
    verdict: str
    num_modules: int = 0
    max_difference: float | None = None
    worst_module: str | None = None


def verify_with_compressed_tensors(directory: Path | str, tolerance: float = 0.0) -> Verification:
    """Compare every packed module of `directory` with the package's own decompressor, in float32.

    The default asks for equality: both sides compute (code - zero point) * scale in float32 from the stored scale. FP4
    and MXFP8 the package gives in bfloat16, to which ours is then rounded. A tied head is decoded too, from its own
    scales. Never raises for a difference, only for an unreadable directory.
    """
    if importlib.util.find_spec(PACKAGE) is None:
        return Verification(None, NOT_INSTALLED)
    checkpoint = CompressedTensorsDirectory(Path(directory))
    other = _OtherReader(checkpoint)
    worst_module, max_difference, num_modules = None, 0.0, 0
    for module in sorted(checkpoint.formats):
        ours = checkpoint.get(f"{module}.weight")
        assert isinstance(ours, QuantizedTensor)
        expected = ours.dequantize(torch.float32)
        for reader_module in other.views(module):
            theirs = other.weight(module, reader_module)
            difference = float((theirs.to(torch.float32) - expected.to(theirs.dtype)).abs().max())
            num_modules += 1
            if worst_module is None or not difference <= max_difference:
                worst_module, max_difference = reader_module, difference
    verified = max_difference <= tolerance
    equal = "equals ours" if verified else "DIFFERS from ours"
    verdict = f"compressed-tensors {other.version} decodes {num_modules} modules; the result {equal}"
    if max_difference > 0:
        verdict += f" (largest difference {max_difference:.3g} in {worst_module})"
    return Verification(verified, verdict, num_modules, max_difference, worst_module)


class _OtherReader:
    """The compressed-tensors package, asked module by module."""

    def __init__(self, checkpoint: CompressedTensorsDirectory) -> None:
        self.version = str(_package("version").__version__)
        self._checkpoint = checkpoint
        self._config = _package("quantization").QuantizationConfig.model_validate(
            checkpoint.config["quantization_config"]
        )
        self._schemes = {target: group for group in self._config.config_groups.values() for target in group.targets}

    def views(self, module: str) -> list[str]:
        """The module, and the tied head where it is decoded from the same codes."""
        return [module, HEAD_MODULE] if self._checkpoint.shares_head(module) else [module]

    def weight(self, codes_of: str, module: str) -> Tensor:
        """Weight of `module`: codes of `codes_of`, other parameters its own."""
        scheme = self._scheme(module)
        stored = {part: self._checkpoint.stored(f"{codes_of}.{part}") for part in self._checkpoint.parts(codes_of)}
        if module != codes_of:
            own = {part: f"{module}.{part}" for part in stored if part != "weight"}
            stored |= {part: self._checkpoint.stored(name) for part, name in own.items()}
        if stored["weight_scale"].itemsize > 1:  # E4M3 and exponents the package widens itself
            stored["weight_scale"] = stored["weight_scale"].to(torch.float32)
        compressor = _package("compressors").BaseCompressor.get_value_from_registry(
            scheme.format or self._config.format
        )
        weight: Tensor = compressor.decompress(stored, scheme)["weight"]
        return weight

    def _scheme(self, module: str) -> Any:
        match = _package("utils.match")
        shell: torch.nn.Module = torch.nn.Linear(1, 1, device="meta")
        if module_class(module) is ModuleClass.EMBEDDING:
            shell = torch.nn.Embedding(1, 1, device="meta")
        targets = match.match_targets(module, shell, self._schemes)
        if not targets or match.is_match(module, shell, self._config.ignore or []):
            raise CheckpointError(f"{self._checkpoint.source}: compressed-tensors finds no scheme for {module}")
        return self._schemes[targets[0]]


def _package(module: str) -> Any:
    """Imported by name: the package is heavy, optional and untyped."""
    return importlib.import_module(f"{PACKAGE}.{module}")
