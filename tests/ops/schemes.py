"""A loaded model's linears in any scheme a recipe can name, made by rounding: quality does not matter here."""

from __future__ import annotations

from dataclasses import replace

import torch

from octavo.models.decoder import DecoderModel
from octavo.numerics.activations import ActivationScheme, InputQuantizer
from octavo.numerics.float_grid import encode_float
from octavo.numerics.float_scheme import FloatScheme
from octavo.numerics.kv_scales import KvScales
from octavo.numerics.packed_tensor import PackedTensor
from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.numerics.scheme import LinearScheme, Scheme
from octavo.ops.base import Attention
from octavo.quantize.schemes import linear_scheme
from tests.ops.packed import rounded

#: What static scales are made for: larger inputs are clamped, as calibration leaves some.
LARGEST_INPUT = 3.0


def named(name: str) -> LinearScheme:
    return linear_scheme(name, 4, 16, True)


def apply_scheme(model: DecoderModel, scheme: LinearScheme) -> DecoderModel:
    """All linears of the layers; the embedding and head stay as they are."""
    for layer in model.layers:
        for linear in list(layer.linears()):
            weight = encode(linear.weight, scheme.weights)
            layer.replace_linear(replace(linear, weight=weight, inputs=input_quantizer(scheme.inputs)))
    return model


def encode(weight: torch.Tensor, scheme: Scheme) -> QuantizedTensor:
    if isinstance(scheme, FloatScheme):
        return encode_float(weight, scheme)
    if not scheme.ternary:
        return rounded(weight, scheme)
    mean = weight.abs().mean()
    codes = (weight / mean).round().clamp(-1, 1).to(torch.int8)
    scale = mean.to(torch.float16).expand(len(weight), 1).contiguous()
    return PackedTensor.from_codes(codes, scale, None, scheme)


def input_quantizer(scheme: ActivationScheme | None) -> InputQuantizer | None:
    if scheme is None:
        return None
    return InputQuantizer(scheme, scheme.calibrated(LARGEST_INPUT))


def with_kv_scales(model: DecoderModel, format: str) -> DecoderModel:
    """A scale for each head, as if keys and values had been seen up to 4 to 6: some that come are larger."""
    largest = {"int8": 127.0, "fp8": 448.0}[format]
    for layer in model.layers:
        layer.attention = with_scales(layer.attention, format, largest)
    return model


def with_scales(attention: Attention, format: str, largest: float) -> Attention:
    heads = attention.num_kv_heads
    scales = [(4 + 2 * index / (2 * heads)) / largest for index in range(2 * heads)]
    return replace(attention, kv_scales=KvScales(format, tuple(scales[:heads]), tuple(scales[heads:])))
