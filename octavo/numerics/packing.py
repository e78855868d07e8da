"""Bit packing: codes of b bits as one little-endian stream of 32-bit words along each row.

The stream is dense for every width (3 bits: 32 codes in exactly 3 words), which for 2, 4 and 8 bits equals
"32/b codes a word, lowest bits first". This is compressed-tensors' `pack-quantized` order (2026 library).
"""

from __future__ import annotations

import torch
from torch import Tensor


def packed_words(num_codes: int, bits: int) -> int:
    """32-bit words that hold `num_codes` codes of `bits` bits."""
    return -(-num_codes * bits // 32)


def pack_codes(codes: Tensor, bits: int) -> Tensor:
    """Signed codes `[rows, columns]` -> int32 words `[rows, ceil(columns * bits / 32)]`.

    Stored unsigned: code + 2^(bits-1). Spare bits of the last word are zero.
    """
    rows, columns = codes.shape
    unsigned = (codes.to(torch.int16) + 2 ** (bits - 1)).to(torch.uint8)
    if bits in (2, 4, 8):
        per_byte = 8 // bits
        padded = torch.nn.functional.pad(unsigned, (0, packed_words(columns, bits) * (32 // bits) - columns))
        lanes = padded.reshape(rows, -1, per_byte)
        packed = lanes[..., 0].clone()
        for lane in range(1, per_byte):
            packed |= lanes[..., lane] << (bits * lane)
        return packed.contiguous().view(torch.int32)
    num_words = packed_words(columns, bits)
    stream = torch.zeros(rows, num_words * 32, dtype=torch.uint8, device=codes.device)
    for bit in range(bits):
        stream[:, bit : columns * bits : bits] = (unsigned >> bit) & 1
    weights = 2 ** torch.arange(8, dtype=torch.uint8, device=codes.device)
    packed = (stream.reshape(rows, num_words * 4, 8) * weights).sum(-1, dtype=torch.uint8)
    return packed.contiguous().view(torch.int32)


def unpack_codes(words: Tensor, bits: int, num_codes: int) -> Tensor:
    """int32 words `[rows, ...]` -> signed int8 codes `[rows, num_codes]`; the inverse of `pack_codes`."""
    packed = words.contiguous().view(torch.uint8)
    rows = packed.shape[0]
    unsigned = packed.clone() if bits == 8 else _unpack_3_bits(packed, rows) if bits == 3 else _spread(packed, bits)
    signed = unsigned.view(torch.int8).sub_(2 ** (bits - 1)) if bits < 8 else unsigned.bitwise_xor_(0x80)
    return signed.view(torch.int8)[:, :num_codes].contiguous()


def _spread(packed: Tensor, bits: int) -> Tensor:
    """Bytes of two 4-bit or four 2-bit codes -> one code a byte: each byte is widened, then shifted copies of it
    leave every code in the low bits of a byte of its own (little-endian)."""
    if bits == 4:
        wide = packed.to(torch.int16)
        return wide.bitwise_or_(wide << 4).bitwise_and_(0x0F0F).view(torch.uint8)
    wide = packed.to(torch.int32)
    wide.bitwise_or_(wide << 12)  # halves of the byte to the halves of the word, then pairs within each
    return wide.bitwise_or_(wide << 6).bitwise_and_(0x03030303).view(torch.uint8)


def _unpack_3_bits(packed: Tensor, rows: int) -> Tensor:
    """Eight 3-bit codes live in three bytes: read them as 24-bit numbers. Rows are whole 32-bit words, so the
    stream is padded to whole triples first."""
    spare = -packed.shape[1] % 3
    if spare:
        packed = torch.nn.functional.pad(packed, (0, spare))
    triples = packed.reshape(rows, -1, 3).to(torch.int32)
    number = triples[..., 0] | (triples[..., 1] << 8) | (triples[..., 2] << 16)
    lanes = [((number >> (3 * lane)) & 7).to(torch.uint8) for lane in range(8)]
    return torch.stack(lanes, dim=-1).reshape(rows, -1)
