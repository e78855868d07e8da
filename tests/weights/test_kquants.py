"""ggml's storage types: their bytes mean what the gguf package reads in them, and their errors are small."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor

from octavo.core.errors import InvalidField
from octavo.numerics.ggml import BLOCK_SIZES, ROUNDED_TYPES, quantize_matrix

BLOCK_TYPES = [name for name in ROUNDED_TYPES if BLOCK_SIZES[name][0] > 1]
#: Root mean square error over that of the weights, for normal ones: a hundredth above what llama.cpp's own quantizer
#: (ggml_quantize_chunk of ggml 0.25.3, no importance) leaves, which for the simple types does not search.
LLAMA_CPP_ERROR = {
    "Q4_0": 0.0861, "Q4_1": 0.0785, "Q5_0": 0.0427, "Q5_1": 0.0379, "Q8_0": 0.0054,
    "Q2_K": 0.2975, "Q3_K": 0.1505, "Q4_K": 0.0716, "Q5_K": 0.0361, "Q6_K": 0.0177,
}  # fmt: skip


@pytest.fixture(scope="module")
def weights() -> Tensor:
    return torch.randn(48, 1024, generator=torch.Generator().manual_seed(0)) * 0.05


def decoded(matrix: Tensor, type_name: str, importance: Tensor | None = None) -> Tensor:
    packed = quantize_matrix(matrix, type_name, importance).numpy()
    kind = gguf.GGMLQuantizationType[type_name]
    assert packed.shape == (len(matrix), matrix.shape[1] // BLOCK_SIZES[type_name][0] * BLOCK_SIZES[type_name][1])
    return torch.tensor(np.array(gguf.quants.dequantize(packed, kind)))


def relative_error(values: Tensor, matrix: Tensor, importance: Tensor | float = 1.0) -> float:
    return float((((values - matrix).square() * importance).mean() / (matrix.square() * importance).mean()).sqrt())


def test_sizes_are_the_packages() -> None:
    for name, size in BLOCK_SIZES.items():
        assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]] == size


@pytest.mark.parametrize("type_name", BLOCK_TYPES)
def test_error_is_llama_cpps_or_less(type_name: str, weights: Tensor) -> None:
    assert relative_error(decoded(weights, type_name), weights) < LLAMA_CPP_ERROR[type_name]


@pytest.mark.parametrize("type_name", BLOCK_TYPES)
def test_a_constant_and_a_zero_block(type_name: str) -> None:
    """Values that each type can name exactly, or nearly: no NaN, no error that is large."""
    for value in (0.0, 0.25, -0.25):
        values = decoded(torch.full((2, 256), value), type_name)
        assert (values - value).abs().max() <= 0.004 * abs(value)


@pytest.mark.parametrize("type_name", BLOCK_TYPES)
def test_positive_blocks_and_outliers(type_name: str, weights: Tensor) -> None:
    positive = weights.abs() + 0.1
    outlier = weights.clone()
    outlier[:, ::100] *= 50
    for matrix, most in ((positive, 2.0), (outlier, 1.0)):
        assert relative_error(decoded(matrix, type_name), matrix) < most * LLAMA_CPP_ERROR[type_name] + 0.05


@pytest.mark.parametrize("type_name", [name for name in BLOCK_TYPES if name != "Q8_0"])
def test_importance_moves_the_error_to_where_it_matters_less(type_name: str, weights: Tensor) -> None:
    importance = torch.randn(1024, generator=torch.Generator().manual_seed(1)).exp()
    plain = relative_error(decoded(weights, type_name), weights, importance)
    weighted = relative_error(decoded(weights, type_name, importance), weights, importance)
    assert weighted < 0.99 * plain
    assert torch.equal(decoded(weights, type_name, 8 * importance), decoded(weights, type_name, importance))


@pytest.mark.parametrize("type_name", ["Q4_0", "Q4_K", "Q6_K"])
def test_importance_that_is_zero_or_huge_in_places(type_name: str, weights: Tensor) -> None:
    importance = torch.ones(1024)
    importance[:256] = 0.0
    importance[300] = 1e12
    values = decoded(weights, type_name, importance)
    assert values.isfinite().all()
    assert relative_error(values[:, 512:], weights[:, 512:]) < 1.2 * LLAMA_CPP_ERROR[type_name]
    assert (values[:, 300] - weights[:, 300]).abs().max() < 0.01


def test_rows_do_not_depend_on_their_neighbours(weights: Tensor) -> None:
    whole = quantize_matrix(weights, "Q4_K")
    assert torch.equal(whole[5:9], quantize_matrix(weights[5:9], "Q4_K"))


def test_plain_types_are_torchs() -> None:
    matrix = torch.tensor([[1.0, -2.5, 3.14159265, 1e-3]])
    assert torch.equal(quantize_matrix(matrix, "F16").view(torch.float16), matrix.half())
    assert torch.equal(quantize_matrix(matrix, "BF16").view(torch.bfloat16), matrix.bfloat16())
    assert torch.equal(quantize_matrix(matrix.bfloat16(), "F32").view(torch.float32), matrix.bfloat16().float())


@pytest.mark.parametrize(
    ("matrix", "type_name", "words"),
    [
        (torch.full((1, 256), torch.nan), "Q4_K", "inf or nan"),
        (torch.full((1, 256), 1e5), "Q4_0", "beyond float16"),
        (torch.full((1, 256), 1e5), "F16", "beyond float16; store it as BF16"),
        (torch.zeros(1, 64), "Q4_K", "rows of 64 are not whole blocks of 256"),
        (torch.zeros(1, 256), "MXFP4", "weights are rounded to"),
    ],
)
def test_what_no_type_can_hold(matrix: Tensor, type_name: str, words: str) -> None:
    with pytest.raises(InvalidField, match=words):
        quantize_matrix(matrix, type_name)
