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

// Multiplying by zero keeps NaN and makes NaN of infinity, whatever an instruction set's maximum does with them.
template <typename L>
Int8Grid int8_grid(const float* x, std::int64_t count) {
    using F = typename L::F;
    F largest = L::zero(), zeros = L::zero();
    each_lanes(count, [&](std::int64_t i, int lanes) {
        const F v = load_lanes<L>(x + i, lanes);
        zeros = L::fma(v, L::zero(), zeros);
        largest = L::max(largest, L::max(v, L::sub(L::zero(), v)));
    });
    const float doubt = L::sum(zeros);
    if (doubt != doubt) return {doubt, 0.0f};
    const float absmax = L::largest(largest);
    const float scale = absmax / kHighestCode;
    if (!(scale >= kSmallestScale)) return {0.0f, 0.0f};
    return {scale, kHighestCode / absmax};
}

// Codes of `count` values; returns their sum.
template <typename L>
std::int32_t write_codes(const float* x, std::int64_t count, float inverse, std::int8_t* codes) {
    const typename L::F factor = L::set(inverse);
    typename L::I sums = L::int_zero();
    each_lanes(count, [&](std::int64_t i, int lanes) {
        const typename L::I code = L::to_int(L::mul(load_lanes<L>(x + i, lanes), factor));
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

// The call that writes a row's last group also writes the zeros behind it.
template <typename L>
void quantize_row(const float* x, std::int64_t features, const QuantizedRows& out, std::int64_t row,
                  std::int64_t first) {
    std::int8_t* codes = out.codes + row * out.padded;
    const std::int64_t end = first + features;
    for (std::int64_t start = first; start < end; start += out.group) {
        const std::int64_t index = row * out.groups + start / out.group;
        const std::int64_t count = end - start < out.group ? end - start : out.group;
        out.scales[index] = quantize_int8<L>(x + (start - first), count, codes + start, out.sums + index);
    }
    const bool is_last = (end + out.group - 1) / out.group == out.groups;
    if (is_last) std::memset(codes + end, 0, static_cast<std::size_t>(out.padded - end));
}

}  // namespace
}  // namespace octavo
