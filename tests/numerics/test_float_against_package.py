"""The compressed-tensors package chooses the same scales, the same codes and the same activations, bit for bit."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

from octavo.numerics.activations import ActivationFormat, ActivationScheme, InputQuantizer
from octavo.numerics.float_grid import encode_float, nvfp4_global_scale
from octavo.numerics.float_scheme import MXFP4, MXFP8, NVFP4, FloatFormat, FloatScheme, Granularity
from tests.numerics.test_float_grid import weights

pytest.importorskip("compressed_tensors")

E4M3 = FloatFormat.E4M3
PRESETS = {
    "NVFP4A16": NVFP4, "MXFP4A16": MXFP4, "MXFP8A16": MXFP8,
    "FP8": FloatScheme(E4M3, Granularity.TENSOR), "FP8_DYNAMIC": FloatScheme(E4M3, Granularity.CHANNEL),
    "FP8_BLOCK": FloatScheme(E4M3, Granularity.BLOCK),
}  # fmt: skip
FORMATS = {
    "NVFP4A16": "nvfp4-pack-quantized", "MXFP4A16": "mxfp4-pack-quantized", "MXFP8A16": "mxfp8-quantized",
}  # fmt: skip


def package(module: str) -> Any:
    return importlib.import_module(f"compressed_tensors.{module}")


def preset(name: str) -> Any:
    return package("quantization.quant_scheme").preset_name_to_scheme(name, ["Linear"])


def their_scales(weight: torch.Tensor, scheme: FloatScheme, args: Any, global_scale: Any) -> torch.Tensor:
    if scheme.granularity is Granularity.BLOCK:
        groups = torch.stack([block.reshape(-1) for band in weight.split(128) for block in band.split(128, 1)])
    elif scheme.granularity is Granularity.TENSOR:
        groups = weight.reshape(1, -1)
    else:
        groups = weight.reshape(len(weight), scheme.num_groups(weight.shape[1]), -1)
    calculate = package("quantization.utils").calculate_qparams
    scale, _ = calculate(groups.amin(-1), groups.amax(-1), args, global_scale=global_scale)
    return scale.reshape(-(-len(weight) // 128), -1) if scheme.granularity is Granularity.BLOCK else scale


@pytest.mark.parametrize("name", list(PRESETS))
def test_weights(name: str) -> None:
    scheme, declared = PRESETS[name], preset(name)
    weight = weights(256, 512)
    ours = encode_float(weight, scheme, search=False)
    global_scale = None
    if scheme.has_global_scale:
        global_scale = package("quantization.utils").generate_gparam(weight.min(), weight.max())
        assert torch.equal(global_scale, ours.global_scale)
    scale = their_scales(weight, scheme, declared.weights, global_scale)
    compressor = package("compressors").BaseCompressor.get_value_from_registry(FORMATS.get(name, "naive-quantized"))
    state = {"weight": weight, "weight_scale": scale, "weight_global_scale": global_scale}
    stored = compressor.compress({key: value for key, value in state.items() if value is not None}, declared)
    codes = stored["weight_packed"] if "weight_packed" in stored else stored["weight"].view(torch.uint8)
    assert torch.equal(codes, ours.codes)
    assert torch.equal(stored["weight_scale"].flatten().view(torch.uint8), ours.scale.flatten().view(torch.uint8))


@pytest.mark.parametrize(
    ("name", "format", "dynamic"),
    [
        ("FP8", ActivationFormat.E4M3, False),
        ("FP8_DYNAMIC", ActivationFormat.E4M3, True),
        ("FP8_BLOCK", ActivationFormat.E4M3_GROUPS, True),
        ("MXFP8", ActivationFormat.MXFP8, True),
        ("MXFP4", ActivationFormat.MXFP4, True),
        ("NVFP4", ActivationFormat.NVFP4, True),
    ],
)
def test_inputs(name: str, format: ActivationFormat, dynamic: bool) -> None:
    """int8 is not here: the package divides by 127.5 and uses -128, we divide by 127 as engines do."""
    x = weights(33, 512, seed=3)
    scheme = ActivationScheme(format, dynamic)
    ours = InputQuantizer(scheme, scheme.calibrated(float(x.abs().max()))).round(x)
    module: Any = torch.nn.Linear(512, 4)
    if name == "NVFP4":
        module.input_global_scale = nvfp4_global_scale(x.abs().max())
    elif not dynamic:
        module.input_scale = (x.abs().max() / 448).reshape(1)
    module.quantization_status = package("quantization").QuantizationStatus.FROZEN
    args = preset(name).input_activations
    theirs = package("quantization.lifecycle.forward").forward_quantize(module, x[None], "input", args)[0]
    assert torch.equal(ours, theirs)
    assert (ours - x).square().sum() < 0.02 * x.square().sum()


@pytest.mark.parametrize("format", list(ActivationFormat))
def test_a_row_depends_on_itself_alone_and_zeros_stay(format: ActivationFormat) -> None:
    x = weights(9, 576, seed=5)
    x[4] = 0
    scheme = ActivationScheme(format)
    quantizer = InputQuantizer(scheme, scheme.calibrated(float(x.abs().max())))
    rounded = quantizer.round(x)
    assert torch.equal(rounded[4], x[4])
    assert torch.equal(quantizer.round(x[2:3]), rounded[2:3])
    assert torch.equal(quantizer.round(rounded), rounded) or format is ActivationFormat.NVFP4
    assert torch.isfinite(quantizer.round(x * 1e30)).all()
    assert torch.isfinite(quantizer.round(x * 1e-30)).all()
