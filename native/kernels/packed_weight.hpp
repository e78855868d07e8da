// A quantized matrix [outputs, inputs] in the order in which the kernels read it.
//
// Outputs go in tiles of 16 (one lane each), inputs in steps of 4 (what one int8 dot product takes). One step of a tile
// is 64 unsigned codes, byte 4 * output + input:
//
//               inputs 4 s .. 4 s + 3
//     output 0  | 0  1  2  3 |
//     output 1  | 4  5  6  7 |        AVX2: two registers, AVX-512: one, NEON: four, an AMX tile: 16 steps
//        ...
//     output 15 | 60 .. 63   |
//
// Codes are stored unsigned, code + 2^(bits-1). Steps are packed into blocks of bytes; a block holds
//
//     8 bits   1 step  in  64 bytes
//     4 bits   2 steps in  64 bytes: step 2 i in the low nibbles, 2 i + 1 in the high ones
//     2 bits   4 steps in  64 bytes: step 4 i + j in bits 2 j, 2 j + 1
//     3 bits   8 steps in 192 bytes: the low two bits of steps 0-3 and of 4-7 as above, then bit j of each byte is the
//              third bit of step j
//     FP4      as 4 bits; a code is looked up (kFp4Codes) when it is unpacked, and is below 2^5 then
//
// Steps are padded to a multiple of 16 (64 inputs), tiles to whole ones; the padding's codes are the zero point.
//
// The sum over inputs is cut into groups of `group` inputs (16, 32, a multiple of 64, or the whole row), the
// same cut as in the activations it meets. For output n and row m, with exact integers inside the brackets:
//
//     y = 0;  for g ascending:  y = fma(float([sum of code * activation] - zero * sums[m, g]), w_scale * x_scale, y)
//
// w_scale * x_scale rounds once, the fma once: that, in this order, defines the bits on every instruction set, for any
// number of rows, by any path. `groups_per_scale` groups share one weight scale and zero point (a scheme with groups of
// 128 and activations in groups of 64: 2; one scale per row of weights: all of them). At the end y is multiplied by
// `output_scale`, which is 1 but for NVFP4, whose scales are relative to the matrix's own.
#pragma once

#include <cstdint>

namespace octavo {

enum class ScaleFormat : std::int32_t { f16, bf16, f32 };

// FP4 among the widths of codes: by the bits that its codes have once they are looked up.
constexpr int kFp4 = 5;
// Twice the values of E2M1, 0 .5 1 1.5 2 3 4 6 and the same with a sign, plus kFp4Middle.
constexpr std::uint8_t kFp4Codes[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
constexpr int kFp4Middle = 12;

// Bits in memory of codes of so many bits.
constexpr int storage_bits(int bits) { return bits == kFp4 ? 4 : bits; }
// The code that stands for zero where there are no zero points.
constexpr std::int32_t middle_code(int bits) { return bits == kFp4 ? kFp4Middle : 1 << (bits - 1); }

struct PackedWeight {
    std::int32_t bits = 0;  // 2, 3, 4, 8 or kFp4
    std::int64_t outputs = 0, inputs = 0;
    std::int64_t tiles = 0;   // ceil(outputs / 16)
    std::int64_t group = 0;   // inputs between float rescales
    std::int64_t groups = 0;  // ceil(inputs / group)
    std::int64_t groups_per_scale = 1;
    std::int64_t scale_groups = 0;  // ceil(groups / groups_per_scale)
    ScaleFormat scale_format = ScaleFormat::f16;
    const std::uint8_t* codes = nullptr;  // [tiles][tile_bytes]
    std::int64_t tile_bytes = 0;
    const void* scales = nullptr;         // [tiles][scale_groups][16] in scale_format
    const std::uint8_t* zeros = nullptr;  // [tiles][scale_groups][16], unsigned like the codes; null: all the middle
    float output_scale = 1.0f;
};

constexpr std::int64_t kTileOutputs = 16;
constexpr std::int64_t kStepInputs = 4;
constexpr std::int64_t kStepBytes = 64;  // unpacked

// A matrix [outputs, inputs] of floats for float activations: tiles of 16 outputs, input after input,
// [tiles][inputs][16]. y = 0; for k ascending: y = fma(x[k], w[k], y).
//
// FP8 values have scales, one for each output and `group` inputs (the last group may be shorter, one may be the row):
//
//     y = 0;  for g ascending:  part = 0;  for k of g ascending: part = fma(x[k], w[k], part);  y = fma(part, scale[g], y)
enum class DenseFormat : std::int32_t { f32, bf16, f16, e4m3, e5m2 };

constexpr bool is_fp8(DenseFormat format) { return format == DenseFormat::e4m3 || format == DenseFormat::e5m2; }
// What lanes make of a code, times this, is its value.
constexpr float fp8_unit(DenseFormat format) { return format == DenseFormat::e4m3 ? 256.0f : 1.0f; }

struct DenseWeight {
    std::int64_t outputs = 0, inputs = 0, tiles = 0;
    DenseFormat format = DenseFormat::f32;
    const void* values = nullptr;
    const float* scales = nullptr;  // FP8: [tiles][groups][16], times fp8_unit
    std::int64_t group = 0, groups = 1;
};

}  // namespace octavo
