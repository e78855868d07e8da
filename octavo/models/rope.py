"""Rotary positions: from config fields to `RopeSpec`, from `RopeSpec` to the numbers an executor rotates with.

Sources: RoFormer (Su et al. 2021), position interpolation (Chen et al. 2023: `linear`), dynamic NTK
(docs/decisions.md says what a position's base is here), YaRN (Peng et al. 2023, section 3), Llama 3.1's `llama3`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from octavo.core.errors import UnsupportedModel
from octavo.models.config import ConfigReader
from octavo.models.spec import RopeSpec
from octavo.ops.base import DynamicRope, Rope

_LENGTH = "original_max_position_embeddings"

#: kind -> (fields it must have, fields it may have)
_FIELDS: dict[str, tuple[set[str], set[str]]] = {
    "default": (set(), set()),
    "linear": ({"factor"}, set()),
    "dynamic": ({"factor"}, {_LENGTH}),
    "llama3": ({"factor", "low_freq_factor", "high_freq_factor"}, {_LENGTH}),
    "yarn": (
        {"factor"},
        {_LENGTH, "attention_factor", "mscale", "mscale_all_dim", "beta_fast", "beta_slow", "truncate"},
    ),
}


def read_rope(reader: ConfigReader, head_dim: int, max_positions: int, default_theta: float = 10_000.0) -> RopeSpec:
    """One rotation for all layers, from `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling`."""
    parameters = dict(reader.take("rope_parameters", {}))
    scaling = reader.take("rope_scaling", {})
    if parameters and scaling and {**parameters, **scaling} != parameters:
        reader.refuse("rope_scaling", "it contradicts rope_parameters")
    parameters = parameters or dict(scaling)
    theta = reader.number("rope_theta", default_theta)
    original = reader.take(_LENGTH)
    if original is not None and parameters:
        parameters[_LENGTH] = original
    if reader.number("partial_rotary_factor", 1.0) != 1.0:
        reader.refuse("partial_rotary_factor", "this family rotates whole heads")
    return parse_rope({"rope_theta": theta, **parameters}, head_dim, max_positions)


def parse_rope(fields: Mapping[str, Any], head_dim: int, max_positions: int) -> RopeSpec:
    """A `rope_parameters` dict -> `RopeSpec`. Raises `UnsupportedModel` for kinds and fields not understood."""
    fields = {name: value for name, value in fields.items() if value is not None}
    theta = float(fields.pop("rope_theta"))
    legacy_kind = fields.pop("type", "default")
    kind = fields.pop("rope_type", legacy_kind)
    if fields.pop("partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedModel("config field rope_parameters.partial_rotary_factor: this family rotates whole heads")
    if kind not in _FIELDS:
        raise UnsupportedModel(f"config field rope_type is {kind!r}: known are {', '.join(_FIELDS)}")
    required, optional = _FIELDS[kind]
    for name in sorted(required - fields.keys()):
        raise UnsupportedModel(f"config field rope_parameters.{name} is missing: rope type {kind} needs it")
    for name in sorted(fields.keys() - required - optional):
        raise UnsupportedModel(
            f"config field rope_parameters.{name} is {fields[name]!r}: not understood for rope type {kind}"
        )
    if kind == "dynamic" and fields.get(_LENGTH, max_positions) != max_positions:
        raise UnsupportedModel(
            f"config field rope_parameters.{_LENGTH} is {fields[_LENGTH]!r}: for rope type dynamic it must equal "
            f"max_position_embeddings ({max_positions})"
        )
    if kind in ("dynamic", "llama3", "yarn"):
        fields.setdefault(_LENGTH, max_positions)
    numbers = tuple(sorted((name, float(value)) for name, value in fields.items()))
    return RopeSpec(theta=theta, rotary_dim=head_dim, kind=kind, parameters=numbers)


def make_rope(spec: RopeSpec) -> Rope:
    """The rotation's frequencies, float32 `[rotary_dim / 2]`, and magnitude."""
    plain = 1.0 / spec.theta ** (torch.arange(0, spec.rotary_dim, 2, dtype=torch.float32) / spec.rotary_dim)
    factor = spec.get("factor", 1.0)
    if spec.kind == "linear":
        return Rope(plain / factor)
    if spec.kind == "dynamic":
        return Rope(plain, dynamic=DynamicRope(spec.theta, factor, int(spec.get(_LENGTH, 0))))
    if spec.kind == "llama3":
        return Rope(_llama3_frequencies(plain, spec))
    if spec.kind == "yarn":
        return Rope(_yarn_frequencies(plain, spec), magnitude=_yarn_magnitude(spec))
    return Rope(plain)


def _llama3_frequencies(plain: torch.Tensor, spec: RopeSpec) -> torch.Tensor:
    """Long waves are stretched by `factor`, short ones kept, those between are blended."""
    low, high = spec.get("low_freq_factor", 1.0), spec.get("high_freq_factor", 4.0)
    turns = spec.get(_LENGTH, 0.0) * plain / (2 * math.pi)  # full rotations within the trained length
    keep = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - keep) * plain / spec.get("factor", 1.0) + keep * plain


def _yarn_frequencies(plain: torch.Tensor, spec: RopeSpec) -> torch.Tensor:
    """YaRN 3.2, "NTK by parts": the ramp runs over feature pairs between `beta_fast` and `beta_slow` rotations."""
    pairs = spec.rotary_dim // 2
    length = spec.get(_LENGTH, 0.0)

    def pair_with_turns(turns: float) -> float:
        return spec.rotary_dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(spec.theta))

    first = pair_with_turns(spec.get("beta_fast", 0.0) or 32.0)
    last = pair_with_turns(spec.get("beta_slow", 0.0) or 1.0)
    if spec.get("truncate", 1.0):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, spec.rotary_dim - 1)
    if first == last:
        last += 0.001
    stretch = ((torch.arange(pairs, dtype=torch.float32) - first) / (last - first)).clamp(0.0, 1.0)
    return plain / spec.get("factor", 1.0) * stretch + plain * (1 - stretch)


def _yarn_magnitude(spec: RopeSpec) -> float:
    """YaRN 3.4: attention temperature as a factor on cos and sin; DeepSeek's `mscale` pair if both are set."""

    def temper(mscale: float) -> float:
        factor = spec.get("factor", 1.0)
        return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0

    stated = spec.get("attention_factor", math.nan)
    if not math.isnan(stated):
        return stated
    mscale, mscale_all_dim = spec.get("mscale", 0.0), spec.get("mscale_all_dim", 0.0)
    if mscale and mscale_all_dim:
        return temper(mscale) / temper(mscale_all_dim)
    return temper(1.0)
