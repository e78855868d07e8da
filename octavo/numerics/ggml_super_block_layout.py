"""The bytes of ggml's super-blocks (llama.cpp's ggml-common.h; `gguf.quants.dequantize` reads the same)."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.numerics.ggml_blocks import half_bytes


def pack_affine(type_name: str, d: Tensor, dmin: Tensor, scales: Tensor, minima: Tensor, codes: Tensor) -> Tensor:
    """Bytes of Q2_K, Q4_K, Q5_K `[blocks, block bytes]` from `d`, `dmin` `[blocks]`, unsigned whole numbers `scales`,
    `minima` `[blocks, sub-blocks]` and `codes` `[blocks, sub-blocks, weights]`."""
    scales, minima = scales.to(torch.uint8), minima.to(torch.uint8)
    flat = codes.to(torch.uint8).reshape(len(codes), 256)
    factors = torch.cat([half_bytes(d), half_bytes(dmin)], -1)
    if type_name == "Q2_K":
        return torch.cat([scales | minima << 4, _crumbs(flat), factors], -1)
    parts = [factors, _six_bit_pairs(scales, minima)]
    if type_name == "Q5_K":
        parts.append(_bit_planes(flat >> 4))
    halves = (flat & 15).reshape(-1, 4, 2, 32)
    parts.append((halves[:, :, 0] | halves[:, :, 1] << 4).reshape(-1, 128))
    return torch.cat(parts, -1)


def pack_symmetric(type_name: str, d: Tensor, scales: Tensor, codes: Tensor) -> Tensor:
    """Bytes of Q3_K, Q6_K from `d` `[blocks]` and signed `scales` `[blocks, 16]`, `codes` `[blocks, 16, 16]`."""
    flat = codes.reshape(len(codes), 256).to(torch.int16)
    if type_name == "Q3_K":
        unsigned = (flat + 4).to(torch.uint8)
        parts = [_bit_planes(unsigned >> 2), _crumbs(unsigned & 3), _six_bit_scales(scales), half_bytes(d)]
        return torch.cat(parts, -1)
    unsigned = (flat + 32).to(torch.uint8)
    quarters = (unsigned & 15).reshape(-1, 2, 4, 32)
    low = (quarters[:, :, :2] | quarters[:, :, 2:] << 4).reshape(-1, 128)
    signed = scales.to(torch.int8).view(torch.uint8)
    return torch.cat([low, _crumbs(unsigned >> 4), signed, half_bytes(d)], -1)


def _crumbs(codes: Tensor) -> Tensor:
    """2-bit codes `[blocks, 256]` -> `[blocks, 64]`: a byte holds weights i, i + 32, i + 64, i + 96 of a half."""
    lanes = codes.reshape(-1, 2, 4, 32)
    packed = lanes[:, :, 0] | lanes[:, :, 1] << 2 | lanes[:, :, 2] << 4 | lanes[:, :, 3] << 6
    return packed.reshape(-1, 64)


def _bit_planes(bits: Tensor) -> Tensor:
    """Bits `[blocks, 256]` -> `[blocks, 32]`: bit k of byte i belongs to weight 32 k + i."""
    powers = 2 ** torch.arange(8, dtype=torch.uint8).reshape(1, 8, 1)
    return (bits.reshape(-1, 8, 32) * powers).sum(1, dtype=torch.uint8)


def _six_bit_pairs(scales: Tensor, minima: Tensor) -> Tensor:
    """Eight 6-bit scales and minima in 12 bytes: the first four of each whole, with the upper two bits of the last
    four above them, whose lower four bits share the last four bytes."""
    first = scales[:, :4] | (scales[:, 4:] >> 4) << 6
    second = minima[:, :4] | (minima[:, 4:] >> 4) << 6
    third = (scales[:, 4:] & 15) | (minima[:, 4:] & 15) << 4
    return torch.cat([first, second, third], -1)


def _six_bit_scales(scales: Tensor) -> Tensor:
    """Sixteen signed 6-bit scales in 12 bytes: lower four bits of scales i and i + 8, then the upper two bits of
    scales i, i + 4, i + 8, i + 12."""
    unsigned = (scales.to(torch.int16) + 32).to(torch.uint8)
    low = (unsigned[:, :8] & 15) | (unsigned[:, 8:] & 15) << 4
    high = (unsigned >> 4).reshape(-1, 4, 4)
    return torch.cat([low, high[:, 0] | high[:, 1] << 2 | high[:, 2] << 4 | high[:, 3] << 6], -1)
