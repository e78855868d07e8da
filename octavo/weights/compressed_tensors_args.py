"""compressed-tensors' args objects: what a config says of weights, of inputs, and of cached keys and values.

Each `..._args` writes what the `parse_...` of the same noun reads. Every key is understood or refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from octavo.core.errors import CheckpointError, InvalidField
from octavo.numerics.activations import ActivationFormat, ActivationScheme
from octavo.numerics.float_scheme import (
    BLOCK,
    MXFP4,
    MXFP8,
    NVFP4,
    FloatFormat,
    FloatScheme,
    Granularity,
    ScaleFormat,
)
from octavo.numerics.scheme import IntegerScheme, Scheme

#: Keys that change no stored number.
_HARMLESS = frozenset({"observer", "observer_kwargs", "zp_dtype"})
_KEYS = frozenset({
    "num_bits", "type", "symmetric", "strategy", "group_size", "block_structure", "dynamic", "actorder", "scale_dtype",
})  # fmt: skip
_E4M3_SCALES, _E8M0_SCALES = "torch.float8_e4m3fn", "torch.uint8"


class Layout(StrEnum):
    """How a module's codes are stored. NAIVE_QUANTIZED is FLOAT_QUANTIZED for weights whose inputs are not."""

    PACK_QUANTIZED = "pack-quantized"
    INT_QUANTIZED = "int-quantized"
    FLOAT_QUANTIZED = "float-quantized"
    NAIVE_QUANTIZED = "naive-quantized"
    NVFP4_PACK_QUANTIZED = "nvfp4-pack-quantized"
    MXFP4_PACK_QUANTIZED = "mxfp4-pack-quantized"
    MXFP8_QUANTIZED = "mxfp8-quantized"


INTEGER_LAYOUTS = (Layout.PACK_QUANTIZED, Layout.INT_QUANTIZED)
_MICROSCALED = {
    Layout.NVFP4_PACK_QUANTIZED: NVFP4, Layout.MXFP4_PACK_QUANTIZED: MXFP4, Layout.MXFP8_QUANTIZED: MXFP8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ModuleFormat:
    """What a module's stored tensors mean. `per_tensor`: one scale for a whole matrix of integers. `inputs`: how the
    module rounds what enters it, None: not."""

    scheme: Scheme
    layout: Layout
    per_tensor: bool = False
    inputs: ActivationScheme | None = None


@dataclass(frozen=True, slots=True)
class KvFormat:
    """`format` is one of `KV_FORMATS`; one scale a layer, or one for each KV head."""

    format: str
    per_head: bool


def weight_args(scheme: Scheme) -> dict[str, Any]:
    args: dict[str, Any] = {"num_bits": scheme.bits, "type": "int", "symmetric": True, "strategy": "channel"}
    args |= {"group_size": scheme.group_size, "dynamic": False}
    if isinstance(scheme, IntegerScheme):
        return {**args, "symmetric": scheme.symmetric, "strategy": "group" if scheme.group_size else "channel"}
    args["type"] = "float"
    if scheme.granularity is Granularity.BLOCK:
        return {**args, "strategy": "block", "block_structure": [BLOCK, BLOCK]}
    if scheme.scale_format is ScaleFormat.E4M3:
        return {**args, "strategy": "tensor_group", "scale_dtype": _E4M3_SCALES}
    if scheme.scale_format is ScaleFormat.E8M0:
        return {**args, "strategy": "group", "scale_dtype": _E8M0_SCALES}
    strategies = {Granularity.TENSOR: "tensor", Granularity.CHANNEL: "channel", Granularity.GROUP: "group"}
    return {**args, "strategy": strategies[scheme.granularity]}


def parse_weights(args: Mapping[str, Any], name: Any, where: str) -> ModuleFormat:
    """`name` is the group's or the config's `format`. Raises `CheckpointError` naming the key."""
    _refuse_unknown(args, where)
    require(name in list(Layout), where.rpartition(".")[0], "format", name, f"these are read: {', '.join(Layout)}")
    layout = Layout(name)
    require(args.get("dynamic", False) is False, where, "dynamic", args.get("dynamic"), "weights must be static")
    order = args.get("actorder")
    require(order in (None, False, "weight", "static"), where, "actorder", order, "an order with g_idx is not read")
    kind = args.get("type", "int")
    require(kind in ("int", "float"), where, "type", kind, "'int' or 'float'")
    try:
        if kind == "float":
            return ModuleFormat(_parse_float(args, layout, where), layout)
        return _parse_integer(args, layout, where)
    except InvalidField as error:
        raise CheckpointError(f"{where}: {error}") from error


def _parse_integer(args: Mapping[str, Any], layout: Layout, where: str) -> ModuleFormat:
    layout = Layout.INT_QUANTIZED if layout is Layout.NAIVE_QUANTIZED else layout
    require(layout in INTEGER_LAYOUTS, where, "type", "int", f"{layout} holds floating-point codes")
    require(args.get("block_structure") is None, where, "block_structure", args.get("block_structure"), "not read")
    strategy, group_size = args.get("strategy"), args.get("group_size") or 0
    if strategy is None:
        strategy = "group" if group_size > 0 else "channel"
    require(strategy in ("group", "channel", "tensor"), where, "strategy", strategy, "group, channel, tensor are read")
    if strategy == "group":
        require(group_size > 0, where, "group_size", group_size, "strategy group needs one")
    size = group_size if strategy == "group" else None
    scheme = IntegerScheme(bits=args.get("num_bits", 8), group_size=size, symmetric=args.get("symmetric", True))
    return ModuleFormat(scheme, layout, per_tensor=strategy == "tensor")


def _parse_float(args: Mapping[str, Any], layout: Layout, where: str) -> FloatScheme:
    require(layout not in INTEGER_LAYOUTS, where, "type", "float", f"{layout} holds integers")
    require(args.get("symmetric", True) is True, where, "symmetric", args.get("symmetric"), "floats are symmetric")
    bits, strategy, size = args.get("num_bits", 8), args.get("strategy"), args.get("group_size")
    if layout in _MICROSCALED:
        scheme = _MICROSCALED[layout]
        expected = weight_args(scheme)
        for key in ("num_bits", "group_size", "strategy"):
            require(args.get(key) == expected[key], where, key, args.get(key), f"{layout} has {expected[key]}")
        stored = args.get("scale_dtype")
        require(stored in (None, expected["scale_dtype"]), where, "scale_dtype", stored, f"{expected['scale_dtype']}")
        return scheme
    require(bits == 8, where, "num_bits", bits, f"{layout} holds FP8")
    require(args.get("scale_dtype") is None, where, "scale_dtype", args.get("scale_dtype"), f"{layout}: null is read")
    if strategy == "block":
        block = args.get("block_structure")
        require(block in ([BLOCK, BLOCK], f"{BLOCK}x{BLOCK}"), where, "block_structure", block, "[128, 128] is read")
        return FloatScheme(FloatFormat.E4M3, Granularity.BLOCK)
    if strategy == "group":
        return FloatScheme(FloatFormat.E4M3, Granularity.GROUP, size)
    require(strategy in ("tensor", "channel"), where, "strategy", strategy, "tensor, channel, block, group are read")
    return FloatScheme(FloatFormat.E4M3, Granularity.TENSOR if strategy == "tensor" else Granularity.CHANNEL)


def _inputs(num_bits: int, type: str, strategy: str, dynamic: Any, **more: Any) -> dict[str, Any]:
    return {"num_bits": num_bits, "type": type, "symmetric": True, "strategy": strategy, "dynamic": dynamic, **more}


#: What is said of inputs, scheme by scheme.
_INPUT_ARGS = {
    ActivationScheme(ActivationFormat.INT8): _inputs(8, "int", "token", True),
    ActivationScheme(ActivationFormat.INT8, dynamic=False): _inputs(8, "int", "tensor", False),
    ActivationScheme(ActivationFormat.E4M3): _inputs(8, "float", "token", True),
    ActivationScheme(ActivationFormat.E4M3, dynamic=False): _inputs(8, "float", "tensor", False),
    ActivationScheme(ActivationFormat.E4M3_GROUPS): _inputs(8, "float", "group", True, group_size=128),
    ActivationScheme(ActivationFormat.MXFP8): _inputs(
        8, "float", "group", True, group_size=32, scale_dtype=_E8M0_SCALES
    ),
    ActivationScheme(ActivationFormat.NVFP4): _inputs(
        4, "float", "tensor_group", "local", group_size=16, scale_dtype=_E4M3_SCALES
    ),
    ActivationScheme(ActivationFormat.MXFP4): _inputs(
        4, "float", "group", True, group_size=32, scale_dtype=_E8M0_SCALES
    ),
}


def input_args(scheme: ActivationScheme | None) -> dict[str, Any] | None:
    return None if scheme is None else dict(_INPUT_ARGS[scheme])


def parse_inputs(args: Mapping[str, Any] | None, where: str) -> ActivationScheme | None:
    """Raises `CheckpointError` for rounding that is not known: to pass over it would change what is computed."""
    if args is None:
        return None
    _refuse_unknown(args, where)
    strategy = args.get("strategy") or ("tensor" if args.get("group_size") is None else "group")
    given = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": False, **args, "strategy": strategy}
    for scheme, expected in _INPUT_ARGS.items():
        stored = given.get("scale_dtype") or expected.get("scale_dtype")  # older files do not say it of FP4
        same = all(given.get(key) == value for key, value in expected.items() if key != "scale_dtype")
        if same and stored == expected.get("scale_dtype") and given.get("group_size") == expected.get("group_size"):
            return scheme
    described = {key: args[key] for key in args if key not in _HARMLESS and args[key] is not None}
    known = ", ".join(map(str, _INPUT_ARGS))
    raise CheckpointError(f"{where}: got {described}; inputs are read as {known}, symmetric")


def kv_args(kv: KvFormat) -> dict[str, Any]:
    strategy = "attn_head" if kv.per_head else "tensor"
    return _inputs(8, "int" if kv.format == "int8" else "float", strategy, False)


def parse_kv(args: Mapping[str, Any] | None, where: str) -> KvFormat | None:
    if not args:
        return None
    _refuse_unknown(args, where)
    expected = {"num_bits": 8, "symmetric": True, "dynamic": False}
    for key, value in expected.items():
        require(args.get(key, value) == value, where, key, args.get(key), f"{value} is read")
    kind, strategy = args.get("type", "int"), args.get("strategy") or "tensor"
    require(kind in ("int", "float"), where, "type", kind, "'int' or 'float'")
    require(strategy in ("tensor", "attn_head"), where, "strategy", strategy, "tensor and attn_head are read")
    return KvFormat("int8" if kind == "int" else "fp8", strategy == "attn_head")


def _refuse_unknown(args: Mapping[str, Any], where: str) -> None:
    for key in args:
        if key not in _KEYS | _HARMLESS:
            raise CheckpointError(f"{where}.{key}: got {args[key]!r}; this key is not understood")


def require(condition: bool, where: str, key: str, value: Any, expected: str) -> None:
    """Raise `CheckpointError` about `where.key` unless `condition`."""
    if not condition:
        raise CheckpointError(f"{where}.{key}: got {value!r}; {expected}")
