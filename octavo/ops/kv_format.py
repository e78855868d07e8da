"""What cached keys and values are kept in, by the setting that a user gives and the scales that the checkpoint has."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from octavo.core.errors import InvalidField
from octavo.ops.base import Attention

#: What `--kv-dtype` takes. "auto": the checkpoint's calibrated format, or the executor's own choice.
KV_DTYPES = ("auto", "float32", "bfloat16", "int8", "fp8", "fp8-e5m2")


class KvFormat(StrEnum):
    """int8 has a scale for each token and head, taken from their own largest magnitude; the calibrated formats have one
    for each KV head. FP8 is E4M3: with a scale its precision counts; E5M2 has the range to go without."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    INT8 = "int8"
    INT8_CALIBRATED = "int8 calibrated"
    FP8 = "fp8"
    FP8_E5M2 = "fp8-e5m2"

    @property
    def is_calibrated(self) -> bool:
        return self in (KvFormat.INT8_CALIBRATED, KvFormat.FP8)


def kv_format(kv_dtype: str, layers: Sequence[Attention]) -> KvFormat:
    """The format for a setting of `KV_DTYPES` but "auto", or the name of a format.

    "int8" takes the checkpoint's scales if it has some for int8. Raises `InvalidField` for scales that are missing, in
    some layers or all, or are not one for each KV head.
    """
    if kv_dtype not in (*KV_DTYPES[1:], KvFormat.INT8_CALIBRATED):
        raise InvalidField("kv_dtype", kv_dtype, f"must be one of {', '.join(KV_DTYPES[1:])}")
    format = KvFormat(kv_dtype)
    if format is KvFormat.INT8 and calibrated_dtype(layers) == "int8":
        format = KvFormat.INT8_CALIBRATED
    if format.is_calibrated:
        _check_scales(format, layers)
    return format


def calibrated_dtype(layers: Sequence[Attention]) -> str | None:
    """What the checkpoint's scales are for, "int8" or "fp8"; None: it has none.

    Raises `InvalidField` if only some layers have scales, or layers differ.
    """
    formats = {None if layer.kv_scales is None else layer.kv_scales.format for layer in layers}
    if len(formats) > 1:
        without = [layer.layer for layer in layers if layer.kv_scales is None]
        found = f"none in layers {without}" if without else f"formats {sorted(map(str, formats))}"
        raise InvalidField("k_scale, v_scale", found, "all attention layers have scales of one format, or none has")
    return formats.pop() if formats else None


def chosen_dtype(kv_dtype: str, layers: Sequence[Attention], own_choice: str) -> str:
    """`kv_dtype`, or for "auto" what the checkpoint has scales for, or else the executor's own choice."""
    return (calibrated_dtype(layers) or own_choice) if kv_dtype == "auto" else kv_dtype


def head_scales(format: KvFormat, layers: Sequence[Attention]) -> list[list[float]]:
    """Of each layer, the scales of the keys by KV head, then those of the values; empty if the format has none."""
    if not format.is_calibrated:
        return []
    return [[*layer.kv_scales.keys, *layer.kv_scales.values] for layer in layers if layer.kv_scales is not None]


def describe(format: KvFormat) -> str:
    """The format with where its scales come from, for people."""
    return {
        KvFormat.INT8: "int8, a scale for each token and head",
        KvFormat.INT8_CALIBRATED: "int8, the checkpoint's calibrated scale for each head",
        KvFormat.FP8: "fp8 (E4M3), the checkpoint's calibrated scale for each head",
        KvFormat.FP8_E5M2: "fp8 (E5M2), no scales",
    }.get(format, str(format))


def _check_scales(format: KvFormat, layers: Sequence[Attention]) -> None:
    wanted = "int8" if format is KvFormat.INT8_CALIBRATED else "fp8"
    for layer in layers:
        scales = layer.kv_scales
        if scales is None or scales.format != wanted:
            found = "it has none" if scales is None else f"its scales are for {scales.format}"
            expected = (
                f"{format} needs the checkpoint's k_scale and v_scale of every attention module; layer {layer.layer}: "
                f"{found}. `octavo quantize MODEL --kv-cache {wanted}` writes them"
            )
            raise InvalidField("kv_dtype", wanted, expected)
        if not len(scales.keys) == len(scales.values) == layer.num_kv_heads:
            given = f"{len(scales.keys)} and {len(scales.values)} in layer {layer.layer}"
            raise InvalidField("k_scale, v_scale", given, f"one for each of {layer.num_kv_heads} KV heads")
