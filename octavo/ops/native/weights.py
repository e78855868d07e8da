"""A model's weights into the kernels' layout, in parallel, each given back as soon as it has been packed."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from torch import Tensor

from octavo.numerics.packed_tensor import PackedTensor
from octavo.ops.native.instructions import Matrix
from octavo.ops.native.packing import activation_group, pack
from octavo.ops.native.program import PackedWeight


def pack_matrices(matrices: Sequence[Matrix], num_threads: int, consume: bool) -> dict[int, PackedWeight]:
    """Packed weights by the id of the weight they were made from; the largest are packed first.

    With `consume` a weight's memory is freed once it is packed, where it is the weight's own. A memory-mapped file's
    pages are not ours to free: the system takes them back when the tensor is gone.
    """

    def packed(matrix: Matrix) -> PackedWeight:
        result = pack(matrix.weight, activation_group(matrix.weight))
        if consume:
            release(matrix.weight)
        return result

    ordered = sorted(matrices, key=lambda matrix: -matrix.weight.shape[0] * matrix.weight.shape[1])
    with ThreadPoolExecutor(num_threads) as pool:
        return dict(zip((id(matrix.weight) for matrix in ordered), pool.map(packed, ordered), strict=True))


def release(weight: Tensor | PackedTensor) -> None:
    """Free the memory behind a weight; whoever reads it afterwards gets torch's error, not numbers."""
    tensors = (weight.words, weight.scale, weight.zero_point) if isinstance(weight, PackedTensor) else (weight,)
    for tensor in tensors:
        if tensor is not None and _owns_memory(tensor):
            tensor.untyped_storage().resize_(0)


def _owns_memory(tensor: Tensor) -> bool:
    """Allocated by torch, and all of it this tensor's."""
    storage = tensor.untyped_storage()
    return storage.resizable() and storage.nbytes() == tensor.nbytes
