"""FP8 and FP4 matrices: every unit has the bits that native/kernels/packed_weight.hpp defines; codes are torch's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from octavo.core.errors import InvalidField
from octavo.numerics.float_grid import encode_float
from octavo.numerics.float_scheme import MXFP4, NVFP4, FloatFormat, FloatScheme, Granularity, ScaleFormat
from octavo.numerics.float_tensor import FloatTensor
from octavo.ops.native import _kernels
from octavo.ops.native.input_form import activation_group
from octavo.ops.native.packing import pack, packed_bytes
from tests.native.test_linear import (
    ROW_COUNTS,
    RUNNABLE,
    Activations,
    Floats,
    dense_product,
    fma,
    packed_product,
    random_activations,
)
from tests.native.test_packing import rows_of

CHANNEL = FloatScheme(FloatFormat.E4M3)
TENSOR = FloatScheme(FloatFormat.E4M3, Granularity.TENSOR)
BLOCKS = FloatScheme(FloatFormat.E4M3, Granularity.BLOCK)
MXFP8 = FloatScheme(FloatFormat.E4M3, Granularity.GROUP, 32, ScaleFormat.E8M0)
WIDE = FloatScheme(FloatFormat.E5M2)
#: The values of E2M1, from the definition: a bit of sign, two of exponent with bias 1, one of mantissa.
E2M1 = np.array([sign * m for sign in (1, -1) for m in (0, 0.5, 1, 1.5, 2, 3, 4, 6)], np.float32)


def random_float(scheme: FloatScheme, outputs: int, inputs: int, seed: int = 0) -> FloatTensor:
    """Weights whose rows differ in size, with zeros and all codes of FP4."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(outputs, inputs, generator=generator) * torch.logspace(-2, 0, outputs)[:, None]
    weight[outputs // 2] = 0
    return encode_float(weight, scheme)


FP8 = [(CHANNEL, 172), (TENSOR, 300), (BLOCKS, 576), (BLOCKS, 100), (MXFP8, 352), (WIDE, 96)]


def defined_float_product(weight: FloatTensor, x: Floats) -> Floats:
    """For groups in order: part = the chain of fma(x, code, part); y = fma(part, scale, y)."""
    codes, scales = weight.values().numpy(), weight.row_scales().numpy()
    y = np.zeros((len(x), weight.shape[0]), np.float32)
    for group, start in enumerate(range(0, weight.shape[1], weight.inputs_per_scale)):
        part = np.zeros_like(y)
        for k in range(start, min(start + weight.inputs_per_scale, weight.shape[1])):
            part = fma(x[:, k, None], codes[:, k], part)
        y = fma(part, scales[:, group], y)
    return y


@pytest.mark.parametrize("unit", RUNNABLE)
@pytest.mark.parametrize(("scheme", "inputs"), FP8, ids=str)
def test_fp8_linear_is_what_it_is_defined_to_be(scheme: FloatScheme, inputs: int, unit: str) -> None:
    weight = random_float(scheme, 70, inputs)
    x = np.random.default_rng(inputs).normal(0, 1, (ROW_COUNTS[-1], inputs)).astype(np.float32)
    expected = defined_float_product(weight, x)
    matrix = pack(weight, None)
    for rows in ROW_COUNTS:
        np.testing.assert_array_equal(dense_product(matrix, x[:rows], unit), expected[:rows])
    parts = [dense_product(matrix, x, unit, (0, 2)), dense_product(matrix, x, unit, (2, 5))]
    np.testing.assert_array_equal(np.concatenate(parts, 1), expected)
    np.testing.assert_allclose(expected, x @ weight.dequantize().numpy().T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("unit", RUNNABLE)
@pytest.mark.parametrize("format", [FloatFormat.E4M3, FloatFormat.E5M2])
def test_every_fp8_code_has_torchs_value(format: FloatFormat, unit: str) -> None:
    """All but NaN and infinity, which are never stored, subnormal numbers included."""
    codes = torch.arange(256, dtype=torch.uint8)
    dtype = torch.float8_e4m3fn if format is FloatFormat.E4M3 else torch.float8_e5m2
    codes = codes[torch.isfinite(codes.view(dtype).float())].repeat(17, 1)
    scale = torch.full((17, 1), 1.5)
    weight = FloatTensor(codes, scale, None, FloatScheme(format), (17, codes.shape[1]))
    assert torch.equal(rows_of(pack(weight, None), unit=unit), codes.view(dtype).float() * 1.5)


def defined_fp4_product(weight: FloatTensor, x: Activations, group: int) -> Floats:
    """As integers are defined, of twice the values; NVFP4's global scale multiplies the sum."""
    nibbles = np.stack((weight.codes.numpy() & 15, weight.codes.numpy() >> 4), -1).reshape(weight.shape)
    doubled = (2 * E2M1[nibbles]).astype(np.int64)
    is_nvfp4 = weight.global_scale is not None
    scales = (weight.scale.float() if is_nvfp4 else torch.exp2(weight.scale.float() - 127)).numpy() / np.float32(2)
    y = np.zeros((len(x.codes), weight.shape[0]), np.float32)
    for index, start in enumerate(range(0, weight.shape[1], group)):
        bracket = x.codes[:, start : start + group].astype(np.int64) @ doubled[:, start : start + group].T
        y = fma(bracket.astype(np.float32), scales[:, index] * x.scales[:, index, None], y)
    return y * np.float32(1.0 / float(weight.global_scale)) if is_nvfp4 else y


@pytest.mark.parametrize("unit", RUNNABLE)
@pytest.mark.parametrize(("scheme", "inputs"), [(NVFP4, 48), (NVFP4, 576), (MXFP4, 96), (MXFP4, 3200)], ids=str)
def test_fp4_linear_is_what_it_is_defined_to_be(scheme: FloatScheme, inputs: int, unit: str) -> None:
    weight, group = random_float(scheme, 33, inputs), scheme.group_size
    x = random_activations(ROW_COUNTS[-1], inputs, group, np.random.default_rng(inputs))
    expected = defined_fp4_product(weight, x, group)
    matrix = pack(weight, activation_group(weight))
    for rows in ROW_COUNTS:
        np.testing.assert_array_equal(packed_product(matrix, x.rows(0, rows), unit), expected[:rows])


@pytest.mark.parametrize("unit", RUNNABLE)
@pytest.mark.parametrize("scheme", [NVFP4, MXFP4, *(scheme for scheme, _ in FP8)], ids=str)
def test_rows_come_back(scheme: FloatScheme, unit: str) -> None:
    """Scales are powers of two apart from the stored ones, and so exact; NVFP4's are rounded once more."""
    weight = random_float(scheme, 37, 160)
    rows = rows_of(pack(weight, activation_group(weight)), unit=unit)
    torch.testing.assert_close(rows, weight.dequantize(), rtol=0 if scheme != NVFP4 else 3e-7, atol=0)


def test_codes_and_scales_cost_their_bits() -> None:
    """FP4: 4 bits and a float16 scale for each group. FP8: a byte and a float32 scale for each group."""
    for scheme, bits in ((NVFP4, 5), (MXFP4, 4.5), (CHANNEL, 8 + 32 / 512), (MXFP8, 9), (BLOCKS, 8.25)):
        weight = random_float(scheme, 64, 512)
        assert packed_bytes(weight, activation_group(weight)) == pack(weight, activation_group(weight)).num_bytes
        assert packed_bytes(weight, activation_group(weight)) == 64 * 512 * bits / 8, scheme


def test_scales_that_float16_cannot_hold_are_kept_whole() -> None:
    weight = encode_float(torch.randn(16, 64) * 1e-12, MXFP4)
    assert torch.equal(rows_of(pack(weight, 32)), weight.dequantize())


def test_what_no_kernel_multiplies_is_refused() -> None:
    odd = random_float(FloatScheme(FloatFormat.E4M3, Granularity.GROUP, 48), 16, 96)
    with pytest.raises(InvalidField, match="inputs that divide 256; got 48"):
        pack(odd, None)
    with pytest.raises(InvalidField, match="inputs that divide 256; got 48"):
        packed_bytes(odd, None)
    with pytest.raises(InvalidField, match="takes float activations"):
        pack(random_float(CHANNEL, 16, 64), 64)
    with pytest.raises(ValueError, match="FP8 has scales"):
        _kernels.DenseMatrix(16, 64, "fp8 e4m3", 64).fill(0, 64, 0, 0, 1)
