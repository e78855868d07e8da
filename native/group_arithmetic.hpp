// The scalar arithmetic of one group, shared by all units for their tails.
//
// In an unnamed namespace on purpose: each unit must own its copy. A shared inline function would be compiled
// with AVX-512 in one unit, and the linker might keep that copy for the portable one.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

namespace octavo {
namespace {

constexpr float kHighestCode = 127.0f;
constexpr std::uint32_t kMagnitudeMask = 0x7fffffffu;
constexpr std::uint32_t kInfinityBits = 0x7f800000u;

// |x| as its bit pattern. Patterns of non-negative floats order like their values, NaN above infinity, so a
// maximum over them is exact, in any order, and keeps NaN.
inline std::uint32_t magnitude_bits(float x) {
    std::uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits & kMagnitudeMask;
}

// Round to nearest, ties to even, for |x| < 2^22: adding 1.5 * 2^23 leaves no room for a fraction.
inline std::int8_t round_code(float x) {
    constexpr float shift = 12582912.0f;
    return static_cast<std::int8_t>((x + shift) - shift);
}

struct GroupScale {
    float scale;
    float inverse;  // 0 for a zero group
};

// From a finite maximum's bits.
inline GroupScale group_scale(std::uint32_t absmax_bits) {
    float absmax;
    std::memcpy(&absmax, &absmax_bits, sizeof absmax);
    const float scale = absmax / kHighestCode;
    if (!(scale >= std::numeric_limits<float>::min())) return {0.0f, 0.0f};
    return {scale, kHighestCode / absmax};
}

}  // namespace
}  // namespace octavo
