"""Packing: what a checkpoint holds comes back out of the kernels' layout; what cannot be held is refused by name."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import safe_open, save_file

from octavo.core.errors import InvalidField
from octavo.numerics.packed_tensor import PackedTensor
from octavo.numerics.scheme import IntegerScheme
from octavo.ops.native import _kernels
from octavo.ops.native.input_form import activation_group
from octavo.ops.native.kernel_units import kernel_units
from octavo.ops.native.packing import pack, packed_bytes

RUNNABLE = [unit.name for unit in kernel_units() if unit.is_available]


def make(scheme: IntegerScheme, outputs: int, inputs: int, dtype: torch.dtype = torch.float16) -> PackedTensor:
    generator = torch.Generator().manual_seed(outputs * inputs + scheme.bits)

    def integers(*shape: int) -> torch.Tensor:
        return torch.randint(scheme.lowest, scheme.highest + 1, shape, generator=generator, dtype=torch.int8)

    groups = scheme.num_groups(inputs)
    scale = (torch.rand(outputs, groups, generator=generator) - 0.5).to(dtype)
    zeros = None if scheme.symmetric else integers(outputs, groups)
    return PackedTensor.from_codes(integers(outputs, inputs), scale, zeros, scheme)


def rows_of(
    matrix: _kernels.PackedMatrix | _kernels.DenseMatrix, multiplier: float = 1.0, unit: str = ""
) -> torch.Tensor:
    """Every row as `packed_row` or `dense_row` gives it: [outputs, inputs] float32."""
    rows = np.full((matrix.outputs, matrix.inputs), np.nan, np.float32)
    row_of = _kernels.packed_row if isinstance(matrix, _kernels.PackedMatrix) else _kernels.dense_row
    for index, row in enumerate(rows):
        row_of(matrix, index, multiplier, row, unit)
    return torch.from_numpy(rows)


@pytest.mark.parametrize("unit", RUNNABLE)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize(
    ("outputs", "inputs", "group"),
    [
        (1, 1, None),
        (16, 64, 64),
        (10, 172, None),
        (37, 48, 16),
        (33, 96, 32),
        (17, 512, 256),
        (5, 31, None),
        (5, 33, None),
    ],
)
def test_every_code_comes_back(
    outputs: int, inputs: int, group: int | None, bits: int, symmetric: bool, unit: str
) -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        weight = make(IntegerScheme(bits, group, symmetric), outputs, inputs, dtype)
        matrix = pack(weight, activation_group(weight))
        assert torch.equal(rows_of(matrix, unit=unit), weight.dequantize())
        assert torch.equal(rows_of(matrix, 3.3, unit), weight.dequantize() * 3.3)
        assert matrix.num_bytes == packed_bytes(weight, activation_group(weight))


@pytest.mark.parametrize("unit", RUNNABLE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (16, 16), (33, 172)])
def test_dense_values_come_back(shape: tuple[int, int], dtype: torch.dtype, unit: str) -> None:
    weight = torch.randn(shape).to(dtype)
    matrix = pack(weight, None)
    assert torch.equal(rows_of(matrix, 1.5, unit), weight.to(torch.float32) * 1.5)
    assert matrix.num_bytes == packed_bytes(weight, activation_group(weight))


def test_codes_cost_their_bits() -> None:
    """4 bits in groups of 64 with float16 scales: 4.25 bits a weight, and nothing else."""
    weight = make(IntegerScheme(4, 64), 512, 576)
    assert packed_bytes(weight, activation_group(weight)) == 512 * 576 * 4.25 / 8


def test_slices_and_mapped_files_are_read_where_they_lie(tmp_path: Path) -> None:
    weight = make(IntegerScheme(4, 64, symmetric=False), 64, 128)
    part = weight.slice_rows(5, 40)
    assert torch.equal(rows_of(pack(part, 64)), weight.dequantize()[5:40])
    wide = torch.randn(20, 100)
    assert torch.equal(rows_of(pack(wide[3:, 10:60], None)), wide[3:, 10:60])
    assert torch.equal(rows_of(pack(wide.T, None)), wide.T)
    # 3 bits end in the file's very last bytes: nothing behind them may be read.
    codes = make(IntegerScheme(3), 16, 4095)
    save_file({"words": codes.words, "scale": codes.scale}, tmp_path / "codes.safetensors")
    with safe_open(tmp_path / "codes.safetensors", "pt") as file:
        mapped = PackedTensor(file.get_tensor("words"), file.get_tensor("scale"), None, codes.scheme, codes.shape)
        assert torch.equal(rows_of(pack(mapped, 64)), codes.dequantize())


def test_tiles_are_filled_by_any_thread() -> None:
    weight = make(IntegerScheme(3, 64, symmetric=False), 500, 256)
    matrix = _kernels.PackedMatrix("int3", 500, 256, 64, 64, "float16", True)

    def fill(tile: int) -> None:
        zeros = weight.zero_point.data_ptr()
        matrix.fill(weight.words.data_ptr(), 256 * 3 // 8, weight.scale.data_ptr(), zeros, tile, tile + 1)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(fill, range(matrix.tiles)))
    assert torch.equal(rows_of(matrix), weight.dequantize())
    with pytest.raises(ValueError, match=r"tiles \[31, 33\) are not within the matrix's 32"):
        matrix.fill(0, 0, 0, 0, 31, 33)


@pytest.mark.parametrize(
    ("group_size", "expected"), [(16, 16), (32, 32), (64, 64), (128, 64), (256, 64), (None, 64)], ids=str
)
def test_activations_follow_the_weights_groups(group_size: int | None, expected: int) -> None:
    assert activation_group(make(IntegerScheme(4, group_size), 16, 256)) == expected
    assert activation_group(torch.zeros(2, 2)) is None


def test_what_cannot_be_held_is_refused_by_name() -> None:
    weight = make(IntegerScheme(4, 64), 16, 128)
    with pytest.raises(InvalidField, match="activation_group: got 48; it must divide the weight's group of 64"):
        pack(weight, 48)
    with pytest.raises(InvalidField, match="activation_group: got 128"):
        pack(weight, 128)
    with pytest.raises(InvalidField, match="activation_group: got None"):
        pack(weight, None)
    with pytest.raises(InvalidField, match="activation_group: got 64; a float weight takes float"):
        pack(torch.zeros(2, 64), 64)
    with pytest.raises(InvalidField, match=r"weight: got 'torch.float64'; native kernels read torch.float32"):
        pack(torch.zeros(2, 64, dtype=torch.float64), None)
    with pytest.raises(InvalidField, match=r"weight: got .*\[2, 2, 2\]"):
        pack(torch.zeros(2, 2, 2), None)
    with pytest.raises(InvalidField, match="rows and columns"):
        pack(torch.zeros(0, 64), None)
    with pytest.raises(InvalidField, match=r"weight: .*a group is 16, 32, a multiple of 64 inputs"):
        pack(make(IntegerScheme(4), 16, 128), 20)
    with pytest.raises(InvalidField, match="at most 65536 inputs"):
        pack(make(IntegerScheme(8), 1, 70000), 70000)
    short = PackedTensor(weight.words[:, :-1], weight.scale, None, weight.scheme, weight.shape)
    with pytest.raises(InvalidField, match=r"weight.words: got .*\[16, 15\].*\[16, 16\]"):
        pack(short, 64)
    other = PackedTensor(weight.words, weight.scale.to(torch.float64), None, weight.scheme, weight.shape)
    with pytest.raises(InvalidField, match=r"weight.scale: got 'torch.float64'"):
        pack(other, 64)


def test_packing_is_quick() -> None:
    """135 million codes should take well under a second of one thread; an eighth of them is timed, best of three."""
    weight = make(IntegerScheme(4, 64), 7168, 2304)
    seconds = []
    for _ in range(3):
        start = time.thread_time()
        pack(weight, 64)
        seconds.append(time.thread_time() - start)
    assert min(seconds) < 0.25
