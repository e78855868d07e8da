// Rounding to FP8: activations that stay floats, and the codes of keys and values.
//
// A number v is rounded to the grid by the step at its magnitude: round(v / step) * step, ties to even. The division by a
// power of two and the product are exact, so the bits are the format's on every instruction set. Numbers beyond the
// largest become the largest; none becomes NaN that was not.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/elementwise.hpp"
#include "kernels/quantize_row.hpp"
#include "kernels/rows.hpp"

namespace octavo {
namespace {

// 2^-9 is the step of E4M3's subnormal numbers, which end at 2^-6 (Micikevicius et al. 2022, table 1); 2^-16 and 2^-14
// are E5M2's.
struct E4m3 {
    static constexpr float largest = 448.0f, smallest_normal = 0x1p-6f, steps_per_octave = 8.0f;
    static constexpr int mantissa_bits = 3, exponent_bias = 7;
};
struct E5m2 {
    static constexpr float largest = 57344.0f, smallest_normal = 0x1p-14f, steps_per_octave = 4.0f;
    static constexpr int mantissa_bits = 2, exponent_bias = 15;
};

template <typename L, typename Format>
typename L::F round_to(typename L::F v) {
    const typename L::F most = L::set(Format::largest), least = L::set(-Format::largest);
    v = L::max(L::min(v, most), least);
    const typename L::F octave = L::max(L::exponent_part(v), L::set(Format::smallest_normal));
    const typename L::F step = L::mul(octave, L::set(1.0f / Format::steps_per_octave));
    return L::mul(L::to_float(L::to_int(L::div(v, step))), step);
}

// The byte of a number on the grid.
template <typename Format>
std::uint8_t fp8_code(float v) {
    std::uint32_t bits;
    std::memcpy(&bits, &v, sizeof bits);
    const std::uint32_t sign = bits >> 24 & 0x80, magnitude = bits & 0x7fffffff;
    const std::uint32_t exponents = static_cast<std::uint32_t>(127 - Format::exponent_bias) << Format::mantissa_bits;
    const std::uint32_t normal = (magnitude >> (23 - Format::mantissa_bits)) - exponents;
    const float size = v < 0 ? -v : v;
    const bool is_normal = size >= Format::smallest_normal;
    const auto steps = static_cast<std::uint32_t>(size * (Format::steps_per_octave / Format::smallest_normal));
    return static_cast<std::uint8_t>(sign | (is_normal ? normal : steps & 0x7f));
}

// x = round(x / scale) * scale on the grid of E4M3, in place. The scale is `fixed_scale`, or, if that is 0, absmax / 448:
// x is the whole row then. A row that is not finite becomes NaN, one whose scale would be subnormal becomes 0.
template <typename L>
void round_e4m3(float* x, std::int64_t features, float fixed_scale) {
    const float absmax = largest_magnitude<L>(x, features);
    const float scale = fixed_scale != 0.0f ? fixed_scale : absmax / E4m3::largest;
    if (absmax != absmax || !(scale >= kSmallestScale)) {
        for (std::int64_t i = 0; i < features; ++i) x[i] = absmax != absmax ? absmax : 0.0f;
        return;
    }
    const typename L::F divisor = L::set(scale);
    each_lanes(features, [&](std::int64_t i, int lanes) {
        const typename L::F v = L::div(load_lanes<L>(x + i, lanes), divisor);
        store_lanes<L>(x + i, L::mul(round_to<L, E4m3>(v), divisor), lanes);
    });
}

}  // namespace
}  // namespace octavo
