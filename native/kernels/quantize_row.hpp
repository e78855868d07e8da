// Symmetric int8 quantization, for activations (one scale for each row and group) and for int8 keys and values.
//
// Maxima are exact in any order, and the divisions and the one product for each value are correctly rounded, so the bits
// are the definition's (rows.hpp) on every instruction set.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/elementwise.hpp"
#include "kernels/rows.hpp"

namespace octavo {
namespace {

constexpr float kHighestCode = 127.0f;
constexpr float kSmallestScale =
    1.17549435e-38f;  // the smallest normal float: results must not depend on flush-to-zero

struct Int8Grid {
    float scale;
    float inverse;  // 0: all codes are 0
};

// NaN if a number is not finite: multiplying by zero keeps NaN and makes NaN of infinity, whatever an instruction set's
// maximum does with them.
template <typename L>
float largest_magnitude(const float* x, std::int64_t count) {
    using F = typename L::F;
    F largest = L::zero(), zeros = L::zero();
    each_lanes(count, [&](std::int64_t i, int lanes) {
        const F v = load_lanes<L>(x + i, lanes);
        zeros = L::fma(v, L::zero(), zeros);
        largest = L::max(largest, L::max(v, L::sub(L::zero(), v)));
    });
    const float doubt = L::sum(zeros);
    return doubt != doubt ? doubt : L::largest(largest);
}

template <typename L>
Int8Grid int8_grid(const float* x, std::int64_t count) {
    const float absmax = largest_magnitude<L>(x, count);
    if (absmax != absmax) return {absmax, 0.0f};
    const float scale = absmax / kHighestCode;
    if (!(scale >= kSmallestScale)) return {0.0f, 0.0f};
    return {scale, kHighestCode / absmax};
}

// Codes of `count` values, code_of(16 of them); returns their sum.
template <typename L, typename CodeOf>
[[gnu::always_inline]] inline std::int32_t write_codes_by(const float* x, std::int64_t count, std::int8_t* codes,
                                                          CodeOf code_of) {
    typename L::I sums = L::int_zero();
    each_lanes(count, [&](std::int64_t i, int lanes) {
        const typename L::I code = L::to_int(code_of(load_lanes<L>(x + i, lanes)));
        sums = L::int_add(sums, code);
        if (lanes == kLanes) return L::store_i8(codes + i, code);
        std::int8_t tail[kLanes];
        L::store_i8(tail, code);
        std::memcpy(codes + i, tail, static_cast<std::size_t>(lanes));
    });
    std::int32_t lane[kLanes], sum = 0;
    L::int_store(lane, sums);
    for (int i = 0; i < kLanes; ++i) sum += lane[i];
    return sum;
}

template <typename L>
std::int32_t write_codes(const float* x, std::int64_t count, float inverse, std::int8_t* codes) {
    const typename L::F factor = L::set(inverse);
    return write_codes_by<L>(x, count, codes, [=](typename L::F v) { return L::mul(v, factor); });
}

// By a scale that some of the values may exceed.
template <typename L>
std::int32_t write_clamped_codes(const float* x, std::int64_t count, float scale, std::int8_t* codes) {
    const typename L::F divisor = L::set(scale), highest = L::set(kHighestCode), lowest = L::set(-kHighestCode);
    return write_codes_by<L>(x, count, codes,
                             [=](typename L::F v) { return L::max(L::min(L::div(v, divisor), highest), lowest); });
}

// One scale for `count` values. Returns the scale; `sum` is that of the codes.
template <typename L>
float quantize_int8(const float* x, std::int64_t count, std::int8_t* codes, std::int32_t* sum) {
    const Int8Grid grid = int8_grid<L>(x, count);
    if (grid.inverse == 0.0f) {
        std::memset(codes, 0, static_cast<std::size_t>(count));
        *sum = 0;
    } else {
        *sum = write_codes<L>(x, count, grid.inverse, codes);
    }
    return grid.scale;
}

// The scale that all groups of the row share, NaN if one of its numbers is not finite.
template <typename L>
Int8Grid shared_grid(const float* x, std::int64_t features, const QuantizedRows& out) {
    const Int8Grid grid = int8_grid<L>(x, features);
    if (out.source == ScaleSource::row || grid.scale != grid.scale) return grid;
    return {out.fixed_scale, 1.0f};
}

// One group by a scale that is not its own. Returns the sum of the codes.
template <typename L>
std::int32_t quantize_group(const float* x, std::int64_t count, const Int8Grid& grid, ScaleSource source,
                            std::int8_t* codes) {
    if (grid.inverse == 0.0f) {
        std::memset(codes, 0, static_cast<std::size_t>(count));
        return 0;
    }
    if (source == ScaleSource::fixed) return write_clamped_codes<L>(x, count, grid.scale, codes);
    return write_codes<L>(x, count, grid.inverse, codes);
}

// The call that writes a row's last group also writes the zeros behind it. Where the scale is the row's, x is all of it.
template <typename L>
void quantize_row(const float* x, std::int64_t features, const QuantizedRows& out, std::int64_t row,
                  std::int64_t first) {
    std::int8_t* codes = out.codes + row * out.padded;
    const std::int64_t end = first + features;
    const bool is_shared = out.source != ScaleSource::group;
    const Int8Grid grid = is_shared ? shared_grid<L>(x, features, out) : Int8Grid{};
    for (std::int64_t start = first; start < end; start += out.group) {
        const std::int64_t index = row * out.groups + start / out.group;
        const std::int64_t count = end - start < out.group ? end - start : out.group;
        const float* const group = x + (start - first);
        if (is_shared) {
            out.scales[index] = grid.scale;
            out.sums[index] = quantize_group<L>(group, count, grid, out.source, codes + start);
        } else {
            out.scales[index] = quantize_int8<L>(group, count, codes + start, out.sums + index);
        }
    }
    const bool is_last = (end + out.group - 1) / out.group == out.groups;
    if (is_last) std::memset(codes + end, 0, static_cast<std::size_t>(out.padded - end));
}

}  // namespace
}  // namespace octavo
