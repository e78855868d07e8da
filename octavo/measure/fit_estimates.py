"""How a fit's table is made: every option of every group estimated, some changes really made as a check."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from octavo.measure.fit import ProxyCheck
from octavo.measure.fit_table import FitTable, Option
from octavo.measure.perturbation import PerturbationMeter
from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.numerics.scheme import IntegerScheme
from octavo.ops.base import Linear
from octavo.quantize.bulk_ops import dense
from octavo.quantize.file_size import StoredTensor, stored_parts
from octavo.quantize.module_groups import EMBEDDING, ModuleGroup, block_groups, outer_groups
from octavo.quantize.options import ErrorTable, embedding_schemes, group_errors, linear_schemes
from octavo.quantize.recipe import Recipe
from octavo.quantize.rounding import Rounder
from octavo.quantize.rtn import rtn
from octavo.quantize.sensitivity import Sensitivities, load_sensitivities, measure_sensitivities, save_sensitivities

if TYPE_CHECKING:
    from octavo.models.decoder import DecoderModel
    from octavo.models.load import LoadedModel
    from octavo.quantize.calibration import Calibration
    from octavo.quantize.statistics import InputStatistics
    from octavo.quantize.statistics_cache import StatisticsCache
    from octavo.weights.checkpoint import Checkpoint

#: Tokens that the gradients are of, and those that changed predictions are measured on.
SENSITIVITY_TOKENS, MEASURED_TOKENS = 4096, 512
#: Blocks of which every group is really changed, to check the estimates.
CHECKED_BLOCKS = 3
_CHECKED_BITS = 3
_SCALE_DTYPES = {"float16": "F16", "bfloat16": "BF16", "float32": "F32"}

#: Called with (what is being done, finished parts, all parts).
Progress = Callable[[str, int, int], None]


def make_fit_table(
    loaded: LoadedModel,
    calibration: Calibration,
    statistics: StatisticsCache,
    recipe: Recipe,
    zero_points: bool,
    progress: Progress,
) -> FitTable:
    """Estimate every option of every group, and measure some changes to see what the estimates are worth.

    All of it is kept beside the statistics: a second budget for the same model and text needs no work.
    """
    return _Maker(loaded, calibration, statistics, recipe, zero_points, progress).make()


class _Maker:
    def __init__(
        self,
        loaded: LoadedModel,
        calibration: Calibration,
        statistics: StatisticsCache,
        recipe: Recipe,
        zero_points: bool,
        progress: Progress,
    ) -> None:
        self.model, self.checkpoint = loaded.model, loaded.checkpoint
        self.calibration, self.statistics, self.recipe = calibration, statistics, recipe
        self.zero_points, self.progress = zero_points, progress
        self._packed = _packed_modules(self.model)
        settings = {name: getattr(recipe, name) for name in ("method", "damping", "act_order", "search", "scale_dtype")}
        self.estimated = ErrorTable(statistics.directory, "estimated", **settings, tokens=SENSITIVITY_TOKENS)
        self.measured = ErrorTable(statistics.directory, "measured", **settings, tokens=MEASURED_TOKENS)
        self._meter: PerturbationMeter | None = None
        self._read: tuple[int | None, dict[str, InputStatistics]] = (None, {})

    @property
    def meter(self) -> PerturbationMeter:
        if self._meter is None:
            segments, _ = self.calibration.sample(MEASURED_TOKENS)
            self._meter = PerturbationMeter(self.model, segments)
        return self._meter

    def make(self) -> FitTable:
        sensitivities = self._sensitivities()
        groups, errors, schemes = [], [], []
        for index, layer in enumerate(self.model.layers):
            for group, linears in block_groups(layer):
                offered = linear_schemes([linear.num_inputs for linear in linears], self.zero_points)
                groups.append(group)
                schemes.append(offered)
                errors.append(self._estimate(group, linears, offered, sensitivities))
            self.progress("estimating", index + 1, len(self.model.layers))
        check = self._check(groups, schemes, errors)
        for number, group in enumerate(groups):
            errors[number] = [error * check.factor(group.role) for error in errors[number]]
        for group in outer_groups(self.model):
            offered = embedding_schemes(self.model.spec.hidden_size)
            groups.append(group)
            schemes.append(offered)
            errors.append(self._measure_outer(group, offered))
        options = [self._options(*each) for each in zip(groups, schemes, errors, strict=True)]
        return FitTable(groups, options, self._fixed(groups), self._num_weights(), check)

    def _sensitivities(self) -> Sensitivities:
        directory = self.statistics.directory
        found = load_sensitivities(directory, SENSITIVITY_TOKENS)
        if found is None:
            segments, mask = self.calibration.sample(SENSITIVITY_TOKENS)
            found = measure_sensitivities(
                self.model, segments, mask, progress=lambda done, total: self.progress("gradients", done, total)
            )
            save_sensitivities(directory, found, SENSITIVITY_TOKENS)
        return found

    def _estimate(
        self, group: ModuleGroup, linears: list[Linear], schemes: list[IntegerScheme], sensitivities: Sensitivities
    ) -> list[float]:
        known = self.estimated.get(group.name, schemes)
        if known is None:
            known = group_errors(linears, self._block(group), sensitivities, schemes, self.recipe)
            self.estimated.put(group.name, schemes, known)
        return known

    def _block(self, group: ModuleGroup) -> dict[str, InputStatistics]:
        """Statistics of a group's block; the last block read is kept."""
        assert group.block is not None
        if self._read[0] != group.block:
            self._read = (group.block, dict(self.statistics.block(group.block)))
        return self._read[1]

    def _check(
        self, groups: list[ModuleGroup], schemes: list[list[IntegerScheme]], errors: list[list[float]]
    ) -> ProxyCheck:
        """Really change all groups of some blocks, one by one."""
        count = min(CHECKED_BLOCKS, len(self.model.layers))
        blocks = {int((number + 0.5) * len(self.model.layers) / count) for number in range(count)}
        chosen = [number for number, group in enumerate(groups) if group.block in blocks]
        pairs = []
        for done, number in enumerate(chosen):
            group = groups[number]
            scheme = next(each for each in schemes[number] if each.bits == _CHECKED_BITS)
            known = self.measured.get(group.name, [scheme])
            if known is None:
                known = [self._measure_linears(group, scheme)]
                self.measured.put(group.name, [scheme], known)
            pairs.append((group.name, group.role, str(scheme), errors[number][schemes[number].index(scheme)], known[0]))
            self.progress("checking", done + 1, len(chosen))
        return ProxyCheck(pairs)

    def _measure_linears(self, group: ModuleGroup, scheme: IntegerScheme) -> float:
        assert group.block is not None
        entries = tuple((name, scheme.bits, scheme.group_size, scheme.symmetric) for name in group.modules)
        rounder, statistics = Rounder(replace(self.recipe, allocation=entries)), self._block(group)
        weights: dict[str, QuantizedTensor] = {}
        for linear in self.model.layers[group.block].linears():
            if linear.name in group.modules:
                rounded = rounder(linear, statistics[linear.name]).weight
                assert isinstance(rounded, QuantizedTensor)
                weights[linear.name] = rounded
        return self.meter.linears(group.block, weights)

    def _measure_outer(self, group: ModuleGroup, schemes: list[IntegerScheme]) -> list[float]:
        """Of the embedding or head: few options, so each is measured. More bits are never taken to be worse."""
        errors = []
        for done, scheme in enumerate(schemes):
            known = self.measured.get(group.name, [scheme])
            if known is None:
                source = self.model.embedding.weight if group.role == EMBEDDING else self.model.head.weight
                dtype, search = self.recipe.torch_scale_dtype, self.recipe.search
                weight = rtn(group.modules[0], dense(source), scheme, scale_dtype=dtype, search=search).packed
                known = [self.meter.embedding(weight) if group.role == EMBEDDING else self.meter.head(weight)]
                self.measured.put(group.name, [scheme], known)
            errors += known
            self.progress(f"measuring the {group.role}", done + 1, len(schemes))
        return errors

    def _options(self, group: ModuleGroup, schemes: list[IntegerScheme], errors: list[float]) -> list[Option]:
        scale_dtype = _SCALE_DTYPES[self.recipe.scale_dtype]
        head = self.model.head.name if self.model.spec.tied_embedding else None
        shapes = {name: self._shape(name) for name in group.modules}
        is_embedding = group.role == EMBEDDING
        options = [
            Option(
                scheme,
                tuple(
                    part
                    for name, shape in shapes.items()
                    for part in stored_parts(
                        name, shape, scheme, scale_dtype, is_embedding=is_embedding, tied_head=head
                    )
                ),
                error,
            )
            for scheme, error in zip(schemes, errors, strict=True)
        ]
        if any(name in self._packed for name in group.modules):
            return options  # a source that is quantized already has no full-precision form to keep
        kept = tuple(_kept(self.checkpoint, f"{name}.weight") for name in group.modules)
        return [*options, Option(None, kept, 0.0)]

    def _shape(self, module: str) -> tuple[int, int]:
        outputs, inputs = self.checkpoint.shape(f"{module}.weight")
        return outputs, inputs

    def _stored_names(self) -> list[str]:
        tied = f"{self.model.head.name}.weight" if self.model.spec.tied_embedding else None
        return [name for name in self.checkpoint.names() if name != tied]

    def _fixed(self, groups: list[ModuleGroup]) -> list[StoredTensor]:
        chosen = {f"{name}.weight" for group in groups for name in group.modules}
        return [
            _kept(self.checkpoint, name, changes=bool(self.recipe.transforms))
            for name in self._stored_names()
            if name not in chosen
        ]

    def _num_weights(self) -> int:
        return sum(math.prod(self.checkpoint.shape(name)) for name in self._stored_names())


def _packed_modules(model: DecoderModel) -> set[str]:
    """Names of those that the source itself has quantized."""
    linears = [model.head, *(linear for layer in model.layers for linear in layer.linears())]
    weights = {linear.name: linear.weight for linear in linears} | {model.embedding.name: model.embedding.weight}
    return {name for name, weight in weights.items() if isinstance(weight, QuantizedTensor)}


def _kept(checkpoint: Checkpoint, name: str, changes: bool = False) -> StoredTensor:
    """A tensor that is copied. Transforms write the norms that they change as float32; what a file stores in fewer
    than 16 bits is float32 once it is read."""
    shape = checkpoint.shape(name)
    is_half = checkpoint.tensor_bytes(name) == 2 * math.prod(shape) and not (changes and len(shape) == 1)
    return StoredTensor(name, "BF16" if is_half else "F32", shape)
