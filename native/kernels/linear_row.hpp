// One row of a weight as floats: an embedding lookup.
#pragma once

#include "kernels/linear_tile.hpp"

namespace octavo {
namespace {

// The unsigned code of one output of a tile and one input.
template <int bits>
std::int32_t code_at(const std::uint8_t* codes, std::int64_t lane, std::int64_t input) {
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
        const float scale = lane_of<L>(load_scales<L>(weight, at), lane);
        const std::int32_t zero = weight.zeros ? weight.zeros[at * kTileOutputs + lane] : 1 << (bits - 1);
        const std::int64_t end = lesser((group + 1) * inputs_per_scale, weight.inputs);
        for (std::int64_t k = group * inputs_per_scale; k < end; ++k) {
            y[k] = static_cast<float>(code_at<bits>(codes, lane, k) - zero) * scale * multiplier;
        }
    }
}

template <typename L>
void packed_row(const PackedWeight& weight, std::int64_t output, float multiplier, float* y) {
    if (weight.bits == 8) return row_of_bits<L, 8>(weight, output, multiplier, y);
    if (weight.bits == 4) return row_of_bits<L, 4>(weight, output, multiplier, y);
    if (weight.bits == 3) return row_of_bits<L, 3>(weight, output, multiplier, y);
    row_of_bits<L, 2>(weight, output, multiplier, y);
}

template <typename L>
void dense_row(const DenseWeight& weight, std::int64_t output, float multiplier, float* y) {
    const std::int64_t tile = output / kTileOutputs, lane = output % kTileOutputs;
    for (std::int64_t k = 0; k < weight.inputs; ++k) {
        const std::int64_t at = (tile * weight.inputs + k) * kTileOutputs;
        const auto* words = static_cast<const std::uint16_t*>(weight.values) + at;
        const typename L::F weights = weight.format == DenseFormat::f32
                                          ? L::load(static_cast<const float*>(weight.values) + at)
                                      : weight.format == DenseFormat::bf16 ? L::load_bf16(words)
                                                                           : L::load_f16(words);
        y[k] = lane_of<L>(weights, lane) * multiplier;
    }
}

}  // namespace
}  // namespace octavo
