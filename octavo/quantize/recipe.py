"""The recipe: everything that decides what a quantized model's bits are."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

import torch

from octavo.core.errors import InvalidField
from octavo.numerics.scheme import IntegerScheme, LinearScheme
from octavo.quantize.schemes import INTEGER, linear_scheme

#: How codes are chosen. `signround` and `qat` train block by block, `gptq` rounds column by column.
METHODS = ("gptq", "rtn", "signround", "qat")
#: What may be done to weights before, in this order; the model computes the same with them until it is rounded.
TRANSFORMS = ("rotate", "smooth", "awq")
KV_CACHES = ("int8", "fp8")
SCALE_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
#: `embedding_bits` that keeps the embedding as the source has it.
KEPT = 16

#: (module name, bits, group, symmetric): what `octavo fit` gives a module.
Allocation = tuple[tuple[str, int, int | None, bool], ...]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to quantize. `group` None is one scale per output channel. Routers of experts are kept as the source has
    them: they are small, and their rounding would send tokens elsewhere.

    `scheme` "int" is integer weights of `bits`, `group` and `symmetric`; other names (`schemes.NAMED`) say all of it.
    `allocation` gives single modules integer schemes of their own; bits of `KEPT` keep one. The embedding (and an
    untied head) has `embedding_bits` of its own: 8 is symmetric per channel, fewer bits use the linears' grouping, 16
    keeps it. `damping` is the first share of the Hessian's mean diagonal GPTQ tries. `smoothing` is SmoothQuant's
    alpha, None searches. `rotation_block` features are rotated among themselves, None: all together; `seed` draws the
    signs. `steps` are updates of each block (signround, qat), `distill_steps` those of the whole model afterwards, and
    `train` what these change: "scales" (with zeros and norms) or "all".
    Raises `InvalidField`.
    """

    method: str = "gptq"
    bits: int = 4
    group: int | None = 64
    symmetric: bool = True
    act_order: bool = True
    damping: float = 0.01
    search: bool = True
    embedding_bits: int = 8
    scale_dtype: str = "float16"
    scheme: str = INTEGER
    transforms: tuple[str, ...] = ()
    kv_cache: str | None = None
    smoothing: float | None = None
    rotation_block: int | None = None
    seed: int = 0
    steps: int = 100
    distill_steps: int = 0
    train: str = "scales"
    allocation: Allocation = ()

    def __post_init__(self) -> None:
        _among("method", self.method, METHODS)
        for name in self.transforms:
            _among("transforms", name, TRANSFORMS)
        if list(self.transforms) != sorted(set(self.transforms), key=TRANSFORMS.index):
            raise InvalidField("transforms", self.transforms, f"each once, in the order {', '.join(TRANSFORMS)}")
        _among("scale_dtype", self.scale_dtype, tuple(SCALE_DTYPES))
        _among("train", self.train, ("scales", "all"))
        if self.kv_cache is not None:
            _among("kv_cache", self.kv_cache, KV_CACHES)
        if not 0 < self.damping <= 1:
            raise InvalidField("damping", self.damping, "a share of the mean diagonal, above 0 up to 1")
        if self.smoothing is not None and not 0 <= self.smoothing <= 1:
            raise InvalidField("smoothing", self.smoothing, "an exponent from 0 to 1")
        if self.rotation_block is not None and self.rotation_block < 2:
            raise InvalidField("rotation_block", self.rotation_block, "a number of features, 2 or more")
        for name in ("steps", "distill_steps"):
            if getattr(self, name) < 0:
                raise InvalidField(name, getattr(self, name), "a number of updates, 0 or more")
        if self.embedding_bits != KEPT:
            _ = self.embedding_scheme
        self._check_scheme()
        self._check_used()

    def _check_used(self) -> None:
        """What would change nothing is refused: whoever gives it expects that it does."""
        named, inverts = self.scheme != INTEGER, self.method != "rtn"
        draws = "rotate" in self.transforms or self.trains_blocks or self.distill_steps > 0
        unused = {
            "bits": (named, f"{self.scheme} says that itself; leave this out"),
            "group": (named and self.embedding_bits in (8, KEPT), f"{self.scheme} says that itself; leave this out"),
            "symmetric": (named, f"{self.scheme} says that itself; leave this out"),
            "act_order": (not inverts, "the order GPTQ visits inputs in; rtn has none"),
            "damping": (not inverts, "of GPTQ's Hessians; rtn inverts none"),
            "smoothing": ("smooth" not in self.transforms, "the exponent of transform smooth, not asked for"),
            "rotation_block": ("rotate" not in self.transforms, "part of transform rotate, not asked for"),
            "seed": (not draws, "it draws rotations and the order of training, neither of which was asked for"),
            "steps": (not self.trains_blocks, "updates of methods signround and qat; distillation has distill_steps"),
            "train": (not self.distill_steps, "it says what distillation changes: give distill_steps"),
        }
        for field in fields(self):
            is_unused, expected = unused.get(field.name, (False, ""))
            if is_unused and getattr(self, field.name) != field.default:
                raise InvalidField(field.name, getattr(self, field.name), expected)

    def _check_scheme(self) -> None:
        scheme = self.linear_scheme
        if not isinstance(scheme.weights, IntegerScheme):
            if self.trains_blocks:
                raise InvalidField("method", self.method, f"trains integer codes; {scheme.weights} takes rtn or gptq")
            if self.distill_steps:
                raise InvalidField("distill_steps", self.distill_steps, f"0; {scheme.weights} is no integer grid")
        if isinstance(scheme.weights, IntegerScheme) and scheme.weights.ternary and self.method != "qat":
            expected = (
                "rounding a trained model to ternary destroys it; ternary weights must be trained: method qat, "
                "with distill_steps"
            )
            raise InvalidField("method", self.method, expected)

    @property
    def linear_scheme(self) -> LinearScheme:
        """Of every linear that `allocation` does not name."""
        return linear_scheme(self.scheme, self.bits, self.group, self.symmetric)

    def scheme_of(self, module: str) -> LinearScheme | None:
        """A linear's scheme; None keeps it."""
        for name, bits, group, symmetric in self.allocation:
            if name == module:
                return None if bits == KEPT else LinearScheme(IntegerScheme(bits, group, symmetric))
        return self.linear_scheme

    def embedding_scheme_of(self, module: str) -> IntegerScheme | None:
        """The embedding's or an untied head's; None keeps it."""
        for name, bits, group, symmetric in self.allocation:
            if name == module:
                return None if bits == KEPT else IntegerScheme(bits, group, symmetric)
        return self.embedding_scheme

    @property
    def embedding_scheme(self) -> IntegerScheme | None:
        """None keeps the embedding as it is."""
        if self.embedding_bits == KEPT:
            return None
        try:
            return IntegerScheme(self.embedding_bits, None if self.embedding_bits == 8 else self.group, True)
        except InvalidField as error:
            raise InvalidField("embedding_bits", self.embedding_bits, f"{error.expected}, or {KEPT} to keep") from None

    @property
    def needs_calibration(self) -> bool:
        inputs = self.linear_scheme.inputs
        calibrated = inputs is not None and inputs.needs_scale
        data_transforms = any(name != "rotate" for name in self.transforms)
        return (
            self.method != "rtn" or data_transforms or calibrated or self.kv_cache is not None or self.distill_steps > 0
        )

    @property
    def trains_blocks(self) -> bool:
        """Whether each block is trained towards what the source's block computes."""
        return self.method in ("signround", "qat")

    @property
    def needs_source_states(self) -> bool:
        """Whether something is trained towards the source's hidden states, so that the walk computes them too."""
        return self.trains_blocks or self.distill_steps > 0

    @property
    def keeps_latents(self) -> bool:
        """Whether distillation trains the weights behind the codes, so that the walk must hand them on."""
        return self.distill_steps > 0 and self.train == "all"

    @property
    def torch_scale_dtype(self) -> torch.dtype:
        return SCALE_DTYPES[self.scale_dtype]

    @classmethod
    def of(cls, **options: Any) -> Recipe:
        """From keywords or JSON. Raises `InvalidField` for a name that is none."""
        known = {field.name for field in fields(cls)}
        for name in options:
            if name not in known:
                raise InvalidField(name, options[name], f"a recipe has {', '.join(sorted(known))}")
        if "allocation" in options:
            options["allocation"] = tuple(tuple(entry) for entry in options["allocation"])
        if "transforms" in options:
            options["transforms"] = tuple(options["transforms"])
        return cls(**options)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        steps = [*self.transforms, self.method, *(["distill"] if self.distill_steps else [])]
        kv_cache = f", KV cache {self.kv_cache}" if self.kv_cache else ""
        what = f"{len(self.allocation)} modules by themselves, else {self.linear_scheme}" if self.allocation else None
        return (
            f"{' + '.join(steps)} {what or self.linear_scheme}, embedding {self.embedding_scheme or 'kept'}{kv_cache}"
        )


def _among(field: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidField(field, value, f"one of {', '.join(choices)}")
