"""Pre-flight: what a recipe would do to a model, from shapes alone, before any calibration."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from octavo.core.errors import CapacityError, InvalidField
from octavo.core.units import format_bytes, format_seconds
from octavo.numerics.scheme import GROUP_SIZES, IntegerScheme, LinearScheme, Scheme
from octavo.quantize import awq, smoothquant
from octavo.quantize.file_size import header_bytes, stored_parts
from octavo.quantize.observer import num_lent_rows
from octavo.quantize.pair_trial import SAMPLE_TOKENS
from octavo.quantize.recipe import Recipe
from octavo.quantize.training_cost import training_bytes, training_flops
from octavo.quantize.transforms import check_transforms
from octavo.weights.engine_limits import engine_notes

if TYPE_CHECKING:
    from octavo.models.spec import ExpertsSpec, ModelSpec
    from octavo.weights.checkpoint import Checkpoint

#: What the interpreter and torch hold before any weight does.
_BASE_BYTES = 450 * 2**20
#: A dense tensor's share of the file's header.
_TENSOR_BYTES = 110
_DTYPE_NAMES = {torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32"}
#: A source at or below this many bits per weight was quantized before; errors against it flatter.
_FULL_PRECISION_BITS = 15.5


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """One tensor of the output. `scheme` None: copied as it is stored."""

    name: str
    shape: tuple[int, ...]
    scheme: Scheme | None
    source_bytes: int
    output_bytes: int

    @property
    def num_weights(self) -> int:
        return torch.Size(self.shape).numel()


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be done and what it will take. `caveats` belong to any loss that is measured, `notes` to the run."""

    tensors: list[TensorPlan]
    source_bytes: int
    peak_memory_bytes: int
    seconds: float
    caveats: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def output_bytes(self) -> int:
        return sum(tensor.output_bytes for tensor in self.tensors)

    @property
    def num_weights(self) -> int:
        return sum(tensor.num_weights for tensor in self.tensors)

    @property
    def bits_per_weight(self) -> float:
        """Over the whole file: codes, scales, zero points, what is kept, headers."""
        return 8 * self.output_bytes / self.num_weights

    def to_dict(self) -> dict[str, Any]:
        return {
            "source_bytes": self.source_bytes,
            "output_bytes": self.output_bytes,
            "num_weights": self.num_weights,
            "bits_per_weight": round(self.bits_per_weight, 4),
            "peak_memory_bytes": self.peak_memory_bytes,
            "seconds": round(self.seconds, 1),
            "caveats": self.caveats,
            "notes": self.notes,
            "tensors": [
                {
                    "name": tensor.name,
                    "shape": list(tensor.shape),
                    "scheme": None if tensor.scheme is None else str(tensor.scheme),
                    "source_bytes": tensor.source_bytes,
                    "output_bytes": tensor.output_bytes,
                }
                for tensor in self.tensors
            ],
        }

    def __str__(self) -> str:
        return (
            f"{self.num_weights:,} weights: {format_bytes(self.source_bytes)} -> {format_bytes(self.output_bytes)} "
            f"({self.bits_per_weight:.2f} bits per weight, everything counted); "
            f"about {format_bytes(self.peak_memory_bytes)} of memory and {format_seconds(self.seconds)}"
        )


def preflight(spec: ModelSpec, checkpoint: Checkpoint, recipe: Recipe, num_tokens: int) -> Plan:
    """Check every tensor's shape against its scheme and estimate bytes, memory and time. Reads no weights.

    Raises `InvalidField` naming the modules, sizes and group sizes that would work, or why a transform cannot be;
    `CapacityError` if the machine has less memory than the estimate.
    """
    check_transforms(spec, recipe)
    head, table = f"{spec.names.head}.weight", f"{spec.names.embedding}.weight"
    unties = spec.tied_embedding and "rotate" in recipe.transforms
    linears = calibration_rows(spec, num_tokens)
    shapes = {name: checkpoint.shape(name) for name in checkpoint.names()}
    if unties:
        shapes[head] = shapes[table]
    schemes: dict[str, LinearScheme] = {}
    for name in shapes:
        module = name.removesuffix(".weight")
        if name in linears and (linear := recipe.scheme_of(module)) is not None:
            schemes[name] = linear
        elif name in (table, head) and (embedding := recipe.embedding_scheme_of(module)) is not None:
            schemes[name] = LinearScheme(embedding)
    for scheme in dict.fromkeys(own.weights for own in schemes.values()):
        _check_groups({name: shapes[name] for name, own in schemes.items() if own.weights == scheme}, scheme, "group")
    _check_allocation(recipe, shapes)
    tensors = []
    for name, shape in shapes.items():
        if name == head and spec.tied_embedding and not unties:
            continue
        source = table if name == head and unties else name
        tied_head = spec.names.head if spec.tied_embedding and not unties and name == table else None
        plan = _plan_tensor(checkpoint, source, shape, schemes.get(name), recipe, name == table, tied_head)
        tensors.append(replace(plan, name=name))
    sizes = {tensor.name: tensor.num_weights for tensor in tensors if tensor.name in linears}
    num_met = round(sum(size * linears[name] for name, size in sizes.items()) / max(1, num_tokens))
    peak = peak_memory_bytes(spec, tensors, recipe, num_tokens)
    peak += training_bytes(spec, recipe, sum(sizes.values()), num_tokens)
    _check_memory(peak)
    return Plan(
        tensors=tensors,
        source_bytes=checkpoint.num_bytes,
        peak_memory_bytes=peak,
        seconds=estimate_seconds(tensors, linears, recipe)
        + training_flops(spec, recipe, num_met, num_tokens) / _measured_flops(),
        caveats=source_caveats(checkpoint, linears, shapes),
        notes=[
            *(_untying_notes(tensors, head) if unties else []),
            *(expert_notes(spec, num_tokens) if recipe.needs_calibration else []),
            *_engine_notes(spec, {name: own for name, own in schemes.items() if name in linears}, shapes),
        ],
    )


def _untying_notes(tensors: list[TensorPlan], head: str) -> list[str]:
    """What a tied model pays for being rotated."""
    added = sum(tensor.output_bytes for tensor in tensors if tensor.name == head)
    total = sum(tensor.output_bytes for tensor in tensors)
    return [
        f"rotating unties {head.removesuffix('.weight')} from the embedding, for the final norm's gain goes into it "
        f"alone: {format_bytes(added)} of the {format_bytes(total)} are the second matrix"
    ]


def _engine_notes(
    spec: ModelSpec, schemes: Mapping[str, LinearScheme], shapes: Mapping[str, tuple[int, ...]]
) -> list[str]:
    """What other engines will make of the linears, by tensor name."""
    by_module = {name.removesuffix(".weight"): own for name, own in schemes.items()}
    sizes = {module: (shapes[f"{module}.weight"][0], shapes[f"{module}.weight"][1]) for module in by_module}
    return engine_notes(by_module, sizes, list(filter(spec.splits_inputs, by_module)))


def calibration_rows(spec: ModelSpec, num_tokens: int) -> dict[str, int]:
    """Tensor name of each linear, block by block -> rows it is calibrated on. Experts share the tokens, evenly for
    all that is known here, and may be lent others (`ObserverOps`)."""
    rows = {}
    for block in range(spec.num_layers):
        experts = spec.layers[block].experts
        for name in spec.linear_names(block):
            rows[f"{name}.weight"] = num_tokens
            if experts is not None and f".{spec.names.experts}." in name:
                own = num_tokens * experts.experts_per_token // experts.num_experts
                rows[f"{name}.weight"] = own + num_lent_rows(own, num_tokens, _widest_expert_input(spec, experts))
    return rows


def expert_notes(spec: ModelSpec, num_tokens: int) -> list[str]:
    """Said before the work where experts will on average be routed fewer tokens than they have inputs."""
    for experts in filter(None, (layer.experts for layer in spec.layers)):
        own, wanted = num_tokens * experts.experts_per_token // experts.num_experts, _widest_expert_input(spec, experts)
        if own >= wanted:
            continue
        enough = -(-wanted * experts.num_experts // experts.experts_per_token)
        return [
            f"each of the {experts.num_experts} experts of a layer gets about {own:,} of the {num_tokens:,} "
            f"calibration tokens, fewer than its {wanted:,} inputs, and will be calibrated on tokens of other experts "
            f"too; {enough:,} tokens (samples x sequence length) would be enough on average"
        ]
    return []


def _widest_expert_input(spec: ModelSpec, experts: ExpertsSpec) -> int:
    return max(spec.hidden_size, experts.intermediate_size)


def source_caveats(checkpoint: Checkpoint, linears: Iterable[str], shapes: dict[str, tuple[int, ...]]) -> list[str]:
    """What must be said wherever a loss against this source is shown."""
    linears = list(linears)
    bits = 8 * sum(map(checkpoint.tensor_bytes, linears)) / sum(torch.Size(shapes[name]).numel() for name in linears)
    if bits > _FULL_PRECISION_BITS:
        return []
    return [
        f"The source was quantized before ({bits:.2f} bits per weight in its linears): losses are measured against it, "
        "not against the original model, and flatter schemes close to its own grid."
    ]


def _check_allocation(recipe: Recipe, shapes: dict[str, tuple[int, ...]]) -> None:
    for name, *_ in recipe.allocation:
        if f"{name}.weight" not in shapes:
            raise InvalidField("allocation", name, "the model has no module of this name")


def _plan_tensor(
    checkpoint: Checkpoint,
    name: str,
    shape: tuple[int, ...],
    scheme: LinearScheme | None,
    recipe: Recipe,
    is_embedding: bool,
    tied_head: str | None,
) -> TensorPlan:
    stored = checkpoint.tensor_bytes(name)
    if scheme is None:
        changes = bool(recipe.transforms)  # float32 then: a scale or a rotation goes into it
        full = 4 * torch.Size(shape).numel()
        kept = stored if 8 * stored >= 16 * torch.Size(shape).numel() and not changes else full
        return TensorPlan(name, shape, None, stored, kept + _TENSOR_BYTES)
    outputs, inputs = shape
    parts = stored_parts(
        name.removesuffix(".weight"),
        (outputs, inputs),
        scheme.weights,
        _DTYPE_NAMES[recipe.torch_scale_dtype],
        inputs=scheme.inputs,
        is_embedding=is_embedding,
        tied_head=tied_head,
    )
    output = sum(part.num_bytes for part in parts) + header_bytes(parts, checkpoint.num_bytes)
    return TensorPlan(name, shape, scheme.weights, stored, output)


def _check_groups(shapes: dict[str, tuple[int, ...]], scheme: Scheme, field_name: str) -> None:
    size = scheme.group_size
    if size is None:
        return
    wrong = {name: shape for name, shape in shapes.items() if shape[1] % size}
    if not wrong:
        return
    name, shape = next(iter(wrong.items()))
    fits = [str(size) for size in GROUP_SIZES if all(other[1] % size == 0 for other in shapes.values())]
    expected = (
        f"it does not divide the {shape[1]} inputs of {name.removesuffix('.weight')} {list(shape)}"
        f"{f' and {len(wrong) - 1} more modules' if len(wrong) > 1 else ''}; "
        f"for this model {', '.join(fits) or 'no group size'} works, or `channel` for one scale per output"
    )
    if not isinstance(scheme, IntegerScheme):
        expected = f"{scheme}: {expected.partition(';')[0]}; schemes with a scale for each output, such as fp8, work"
        raise InvalidField("scheme", str(scheme), expected)
    raise InvalidField(field_name, size, expected)


def _check_memory(peak_bytes: int) -> None:
    import psutil

    available = psutil.virtual_memory().available
    if peak_bytes > available:
        raise CapacityError(
            f"quantizing needs about {format_bytes(peak_bytes)} of memory, {format_bytes(available)} is available; "
            "use fewer or shorter calibration samples, or a machine with more memory"
        )


def peak_memory_bytes(spec: ModelSpec, tensors: list[TensorPlan], recipe: Recipe, num_tokens: int) -> int:
    """Float32 weights once, the widest moment of one block over all calibration tokens, one Hessian at work."""
    weights = 4 * sum(tensor.num_weights for tensor in tensors)
    if not recipe.needs_calibration:
        return _BASE_BYTES + weights
    heads = (2 * spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
    has_experts = any(layer.experts is not None for layer in spec.layers)
    mlp = spec.widest_mlp + (3 if has_experts else 1) * spec.hidden_size  # an expert may get all rows, gathered
    widest = 4 * spec.hidden_size + max(heads, mlp)
    inputs = max(spec.hidden_size, spec.widest_mlp, spec.num_heads * spec.head_dim)
    return _BASE_BYTES + weights + 4 * num_tokens * widest + 4 * 5 * inputs * inputs


def estimate_seconds(tensors: list[TensorPlan], num_rows: dict[str, int], recipe: Recipe) -> float:
    """From operation counts and the speed of a short float32 product measured now; measuring the result is not
    included. `num_rows` is what `calibration_rows` gives. Meant to be right within a factor of two."""
    weights = [(*tensor.shape, num_rows[tensor.name]) for tensor in tensors if tensor.name in num_rows]
    num_weights = sum(outputs * inputs for outputs, inputs, _ in weights)
    seconds = num_weights * 2e-7 + transform_seconds(num_weights, recipe)
    if recipe.needs_calibration:
        flops = 0.0
        for outputs, inputs, rows in weights:
            flops += (
                2.0 * rows * inputs * (outputs + inputs * 4 / 7) + 5.0 * outputs * inputs * inputs + 3.0 * inputs**3
            )
        seconds += flops / _measured_flops() + sum(inputs for _, inputs, _ in weights) * 4e-5
    return seconds


def transform_seconds(num_weights: int, recipe: Recipe) -> float:
    """Of trying scales on a sample: each trial rounds weights and runs its half layer."""
    trials = {"awq": awq.NUM_EXPONENTS + 3, "smooth": len(smoothquant.EXPONENTS) + 3}
    total = sum(trials[name] for name in recipe.transforms if name in trials)
    if recipe.smoothing is not None and "smooth" in recipe.transforms:
        total -= trials["smooth"]
    return total * num_weights * (2.6 * SAMPLE_TOKENS / _measured_flops() + 6e-8) if total else 0.0


@functools.cache
def _measured_flops() -> float:
    """Of this process: measured once."""
    size = 768
    a = torch.ones(size, size)
    torch.mm(a, a)
    started = time.perf_counter()
    for _ in range(3):
        torch.mm(a, a)
    return 3 * 2 * size**3 / (time.perf_counter() - started)
