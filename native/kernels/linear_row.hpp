// One row of a weight as floats: an embedding lookup.
#pragma once

#include "kernels/dense_linear.hpp"
#include "kernels/linear_tile.hpp"

namespace octavo {
namespace {

// The unsigned code of one output of a tile and one input.
template <int bits>
std::int32_t code_at(const std::uint8_t* codes, std::int64_t lane, std::int64_t input) {
    if constexpr (bits == kFp4) return kFp4Codes[code_at<4>(codes, lane, input)];
    const int index = static_cast<int>(input / kStepInputs % 8);
    const std::uint8_t* octet = codes + input / kOctetInputs * octet_bytes(bits);
    const std::int64_t byte = kStepInputs * lane + input % kStepInputs;
    const std::int32_t low = (octet[low_plane(bits, index) + byte] >> low_shift(bits, index)) & low_mask(bits);
    if constexpr (bits != 3) return low;
    return low | ((octet[kHighPlane + byte] >> index) & 1) << 2;
}

template <typename L>
float lane_of(typename L::F v, std::int64_t lane) {
    float lanes[kLanes];
    L::store(lanes, v);
    return lanes[lane];
}

// y[k] = (float(code - zero) * scale) * multiplier, each product rounded.
template <typename L, int bits>
void row_of_bits(const PackedWeight& weight, std::int64_t output, float multiplier, float* y) {
    const std::int64_t tile = output / kTileOutputs, lane = output % kTileOutputs;
    const std::uint8_t* codes = weight.codes + tile * weight.tile_bytes;
    const std::int64_t inputs_per_scale = weight.group * weight.groups_per_scale;
    for (std::int64_t group = 0; group < weight.scale_groups; ++group) {
        const std::int64_t at = tile * weight.scale_groups + group;
        const float scale = lane_of<L>(load_scales<L>(weight, at), lane) * weight.output_scale;
        const std::int32_t zero = weight.zeros ? weight.zeros[at * kTileOutputs + lane] : middle_code(bits);
        const std::int64_t end = lesser((group + 1) * inputs_per_scale, weight.inputs);
        for (std::int64_t k = group * inputs_per_scale; k < end; ++k) {
            y[k] = static_cast<float>(code_at<bits>(codes, lane, k) - zero) * scale * multiplier;
        }
    }
}

template <typename L>
void packed_row(const PackedWeight& weight, std::int64_t output, float multiplier, float* y) {
    if (weight.bits == 8) return row_of_bits<L, 8>(weight, output, multiplier, y);
    if (weight.bits == kFp4) return row_of_bits<L, kFp4>(weight, output, multiplier, y);
    if (weight.bits == 4) return row_of_bits<L, 4>(weight, output, multiplier, y);
    if (weight.bits == 3) return row_of_bits<L, 3>(weight, output, multiplier, y);
    row_of_bits<L, 2>(weight, output, multiplier, y);
}

// y[k] = (value * scale) * multiplier, each product rounded; scales are FP8's.
template <typename L, DenseFormat format>
void dense_row_of_format(const DenseWeight& weight, std::int64_t output, float multiplier, float* y) {
    const std::int64_t tile = output / kTileOutputs, lane = output % kTileOutputs;
    for (std::int64_t k = 0; k < weight.inputs; ++k) {
        const std::int64_t at = (tile * weight.inputs + k) * kTileOutputs;
        y[k] = lane_of<L>(load_weights<L, format>(weight.values, at), lane);
        if constexpr (is_fp8(format)) y[k] *= lane_of<L>(group_scales<L>(weight, tile, k / weight.group), lane);
        y[k] *= multiplier;
    }
}

template <typename L>
void dense_row(const DenseWeight& weight, std::int64_t output, float multiplier, float* y) {
    const auto run = weight.format == DenseFormat::f32    ? dense_row_of_format<L, DenseFormat::f32>
                     : weight.format == DenseFormat::bf16 ? dense_row_of_format<L, DenseFormat::bf16>
                     : weight.format == DenseFormat::f16  ? dense_row_of_format<L, DenseFormat::f16>
                     : weight.format == DenseFormat::e4m3 ? dense_row_of_format<L, DenseFormat::e4m3>
                                                          : dense_row_of_format<L, DenseFormat::e5m2>;
    run(weight, output, multiplier, y);
}

}  // namespace
}  // namespace octavo
