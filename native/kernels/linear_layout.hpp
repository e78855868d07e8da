// Where a step's codes are inside a packed tile (the picture is in packed_weight.hpp).
//
// The unit is an octet: 8 steps, 32 inputs, 64 bytes for each bit of a code. Half an octet, 16 inputs, is the smallest
// group. A step is one or two byte planes of 64 bytes, shifted and masked; positions are compile-time constants.
#pragma once

#include <cstdint>

#include "kernels/packed_weight.hpp"
#include "kernels/rows.hpp"

namespace octavo {

constexpr std::int64_t kQuadInputs = 16;   // 4 steps
constexpr std::int64_t kOctetInputs = 32;  // 8 steps

constexpr std::int64_t octet_bytes(int bits) { return kStepBytes * storage_bits(bits); }

// The plane that holds the low bits of step `index` (0..7) of an octet: its first byte, the shift down, the mask. Bits are
// those in memory.
constexpr std::int64_t low_plane(int bits, int index) {
    return kStepBytes * (bits == 8 ? index : bits == 4 ? index / 2 : index / 4);
}
constexpr int low_shift(int bits, int index) { return bits == 8 ? 0 : bits == 4 ? 4 * (index % 2) : 2 * (index % 4); }
constexpr int low_mask(int bits) { return bits == 8 ? 0xff : bits == 4 ? 0x0f : 0x03; }

// 3 bits only: the plane of third bits; step `index` has bit `index` of each byte.
constexpr std::int64_t kHighPlane = 2 * kStepBytes;

constexpr std::int64_t padded_inputs(std::int64_t inputs) { return round_up(inputs, kFeatureMultiple); }

// Quads of a full group. A group of at least a row covers the padding too, whose activations are zero.
inline std::int64_t quads_per_group(const PackedWeight& weight) {
    const std::int64_t inputs = weight.group >= weight.inputs ? padded_inputs(weight.inputs) : weight.group;
    return inputs / kQuadInputs;
}

}  // namespace octavo
