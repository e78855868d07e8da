// Activations between kernels: float rows, and rows quantized to int8.
#pragma once

#include <cstdint>

namespace octavo {

// float32 [rows, features], row after row, `stride` floats apart. Read or written by whoever holds it.
template <typename Scalar>
struct RowsOf {
    Scalar* data = nullptr;
    std::int64_t stride = 0;

    Scalar* row(std::int64_t index) const { return data + index * stride; }
    RowsOf from(std::int64_t first_row, std::int64_t first_feature = 0) const {
        return {data + first_row * stride + first_feature, stride};
    }
};
using Rows = RowsOf<float>;
using ConstRows = RowsOf<const float>;

// Whose largest magnitude makes a scale of rounded activations: each group's, the row's, or nobody's: one scale that was
// calibrated serves all.
enum class ScaleSource : std::int32_t { group, row, fixed };

// Symmetric int8 activations, one scale for each row and group of `group` features:
//
//     codes   int8   [rows, padded]     round(x * (127 / absmax)), ties to even; zero in the padding
//     scales  float  [rows, groups]     absmax / 127
//     sums    int32  [rows, groups]     sum of the group's codes (weights are stored unsigned; see packed_weight.hpp)
//
// padded = features rounded up to kFeatureMultiple; groups = ceil(features / group); the last may be shorter.
// A group whose scale would be subnormal (zeros, say) has scale 0 and codes 0; one with NaN or infinity has scale NaN
// and codes 0, so that the row's results are NaN and are noticed at the end. With ScaleSource::row all groups have the
// row's scale; with `fixed` they have `fixed_scale`, and codes are round(x / fixed_scale), at most 127.
struct QuantizedRows {
    std::int8_t* codes = nullptr;
    float* scales = nullptr;
    std::int32_t* sums = nullptr;
    std::int64_t padded = 0;
    std::int64_t groups = 0;
    std::int64_t group = 0;
    std::int64_t features = 0;  // a row may be quantized piece by piece; the piece that ends here zeroes the padding
    ScaleSource source = ScaleSource::group;
    float fixed_scale = 0.0f;

    QuantizedRows from(std::int64_t first_row) const {
        return {codes + first_row * padded,
                scales + first_row * groups,
                sums + first_row * groups,
                padded,
                groups,
                group,
                features,
                source,
                fixed_scale};
    }
};

constexpr std::int64_t kFeatureMultiple = 64;

constexpr std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

}  // namespace octavo
