"""One linear's stored tensors <-> integers, scales and zero points, as GPTQ checkpoints have them.

`qweight` int32 `[in * bits / 32, out]`: codes packed along the inputs, lowest bits first, one dense stream for 3 bits.
`qzeros` int32 `[groups, out * bits / 32]`: zero points packed along the outputs. `scales` float16 `[groups, out]`.
`g_idx` int32 `[in]`: the group of each input. value = scale * (code - zero), codes and zeros unsigned, and a
symmetric zero is 2^(bits-1). Version 1 stores zero - 1, version 2 the zero itself. (quantization.md 2a)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from octavo.core.errors import CheckpointError
from octavo.numerics.packed_tensor import PackedTensor
from octavo.numerics.packing import pack_codes, packed_words, unpack_codes
from octavo.numerics.scheme import GROUP_SIZES, IntegerScheme

QWEIGHT, QZEROS, SCALES, GROUP_INDEX = "qweight", "qzeros", "scales", "g_idx"


class GptqVersion(StrEnum):
    """What `checkpoint_format` says."""

    V1 = "gptq"
    V2 = "gptq_v2"


@dataclass(frozen=True, slots=True)
class GptqArgs:
    """What the config says of one module. `group_size` -1: one group for all inputs."""

    bits: int
    group_size: int
    symmetric: bool

    def __str__(self) -> str:
        group = "per channel" if self.group_size == -1 else f"group {self.group_size}"
        return f"int{self.bits} {'symmetric' if self.symmetric else 'asymmetric'} {group}"


@dataclass(frozen=True, slots=True)
class GptqModule:
    """One module as it is stored: `qweight` as in the file, `scale` `[out, groups]`, int16 `zeros`
    `[out, groups]` unsigned, `groups` int64 `[in]`."""

    args: GptqArgs
    qweight: Tensor
    scale: Tensor
    zeros: Tensor
    groups: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.qweight.shape[1], len(self.groups)

    @property
    def has_symmetric_zeros(self) -> bool:
        return bool((self.zeros == symmetric_zero(self.args.bits)).all())

    @property
    def scheme(self) -> IntegerScheme | None:
        """The grid, if groups are even runs of inputs of a size that a `PackedTensor` can have."""
        inputs = self.shape[1]
        size = inputs if self.args.group_size == -1 else self.args.group_size
        symmetric = self.args.symmetric and self.has_symmetric_zeros
        if inputs % size or not torch.equal(self.groups, torch.arange(inputs) // size):
            return None
        if self.args.group_size == -1 or (size == inputs and size not in GROUP_SIZES):
            return IntegerScheme(self.args.bits, None, symmetric)
        return IntegerScheme(self.args.bits, size, symmetric) if size in GROUP_SIZES else None

    def packed(self, scheme: IntegerScheme) -> PackedTensor:
        zero_point = None
        if not scheme.symmetric:
            zero_point = (self.zeros - symmetric_zero(scheme.bits)).to(torch.int8)
        return PackedTensor(self.qweight.T.contiguous(), self.scale, zero_point, scheme, self.shape)

    def dense(self) -> Tensor:
        """Float32 `[out, in]`, whatever order the groups are in."""
        words = self.qweight.T.contiguous()
        codes = unpack_codes(words, self.args.bits, self.shape[1]).to(torch.float32) + symmetric_zero(self.args.bits)
        zeros, scale = self.zeros.to(torch.float32), self.scale.to(torch.float32)
        return (codes - zeros[:, self.groups]) * scale[:, self.groups]


def symmetric_zero(bits: int) -> int:
    return 1 << (bits - 1)


def encode_gptq(packed: PackedTensor, version: GptqVersion) -> dict[str, Tensor]:
    """Stored tensors of one linear by their local names; scales keep their dtype.

    Sizes must be whole words (`gptq_writer` checks); a zero of 0 wraps around in version 1.
    """
    (outputs, inputs), bits = packed.shape, packed.scheme.bits
    num_groups = packed.scale.shape[1]
    zero_point = packed.zero_point
    if zero_point is None:
        zero_point = torch.zeros(outputs, num_groups, dtype=torch.int8)
    zeros = zero_point.to(torch.int16) - int(version is GptqVersion.V1)
    lowest = -symmetric_zero(bits)
    wrapped = torch.where(zeros < lowest, zeros + (1 << bits), zeros).to(torch.int8)
    return {
        QWEIGHT: packed.words.T.contiguous(),
        QZEROS: pack_codes(wrapped.T.contiguous(), bits),
        SCALES: packed.scale.T.contiguous(),
        GROUP_INDEX: (torch.arange(inputs) // (inputs // num_groups)).to(torch.int32),
    }


def stored_zeros(words: Tensor, bits: int, num_outputs: int) -> Tensor:
    """`qzeros` -> the unsigned numbers that are stored, int16 `[groups, outputs]`."""
    return unpack_codes(words, bits, num_outputs).to(torch.int16) + symmetric_zero(bits)


def version_of_symmetric(zeros: Tensor, bits: int) -> GptqVersion | None:
    """What stored zeros of a symmetric module tell: all 7 (of 4 bits) is version 1, all 8 version 2."""
    if bool((zeros == symmetric_zero(bits) - 1).all()):
        return GptqVersion.V1
    return GptqVersion.V2 if bool((zeros == symmetric_zero(bits)).all()) else None


def decode_gptq(
    module: str, parts: Mapping[str, Tensor], args: GptqArgs, version: GptqVersion, borrowed: bool = False
) -> GptqModule:
    """The inverse of `encode_gptq`. Raises `CheckpointError` naming the tensor whose shape or type is wrong.

    A version 1 zero of 2^bits - 1 is a zero of 0 that wrapped. `borrowed`: whole words had one subtracted in every
    code (GPTQModel does that), so that a wrapping code took one from the next.
    """
    qweight, bits = parts[QWEIGHT], args.bits
    if qweight.ndim != 2 or qweight.dtype != torch.int32 or qweight.shape[0] * 32 % bits:
        raise CheckpointError(f"{module}.{QWEIGHT}: is {qweight.dtype} {list(qweight.shape)}, not {bits}-bit words")
    outputs, inputs = qweight.shape[1], qweight.shape[0] * 32 // bits
    size = inputs if args.group_size == -1 else args.group_size
    num_groups = -(-inputs // size)
    _check(module, QZEROS, parts[QZEROS], (num_groups, packed_words(outputs, bits)), torch.int32)
    _check(module, SCALES, parts[SCALES], (num_groups, outputs), parts[SCALES].dtype)
    if not parts[SCALES].is_floating_point():
        raise CheckpointError(f"{module}.{SCALES}: has dtype {parts[SCALES].dtype}, not a floating-point one")
    words = parts[QZEROS]
    if version is GptqVersion.V1 and borrowed and bits != 3:
        words = words + _one_in_each_code(bits)
    zeros = stored_zeros(words, bits, outputs)
    if version is GptqVersion.V1 and not (borrowed and bits != 3):
        zeros = (zeros + 1) % (1 << bits)
    groups = torch.arange(inputs) // size
    if GROUP_INDEX in parts:
        groups = _group_index(module, parts[GROUP_INDEX], inputs, num_groups)
    return GptqModule(args, qweight, parts[SCALES].T.contiguous(), zeros.T.contiguous(), groups)


def _one_in_each_code(bits: int) -> int:
    return sum(1 << shift for shift in range(0, 32, bits))


def _group_index(module: str, stored: Tensor, inputs: int, num_groups: int) -> Tensor:
    _check(module, GROUP_INDEX, stored, (inputs,), stored.dtype)
    groups = stored.to(torch.int64)
    if stored.is_floating_point() or int(groups.min()) < 0 or int(groups.max()) >= num_groups:
        raise CheckpointError(f"{module}.{GROUP_INDEX}: names groups outside 0..{num_groups - 1}")
    return groups


def _check(module: str, part: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if tuple(tensor.shape) != shape or tensor.dtype != dtype:
        raise CheckpointError(
            f"{module}.{part}: is {tensor.dtype} {list(tensor.shape)}, but its config makes it {dtype} {list(shape)}"
        )
