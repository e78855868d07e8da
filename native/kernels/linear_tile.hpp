// One tile of a packed weight as it is stored, and ranges of its groups.
#pragma once

#include "kernels/linear_layout.hpp"

namespace octavo {
namespace {

constexpr std::int64_t lesser(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

// Groups [first, end) of a tile: `quads` quads each, but for the last, that ends with quad `num_quads`.
struct GroupRange {
    std::int64_t first, end;
    std::int64_t quads, num_quads;
    std::int64_t per_scale;  // groups that share a scale

    std::int64_t first_quad() const { return first * quads; }
    std::int64_t end_quad() const { return lesser(end * quads, num_quads); }
    GroupRange part(std::int64_t from, std::int64_t to) const { return {from, to, quads, num_quads, per_scale}; }
};

inline GroupRange whole_range(const PackedWeight& weight) {
    const std::int64_t num_quads = padded_inputs(weight.inputs) / kQuadInputs;
    return {0, weight.groups, quads_per_group(weight), num_quads, weight.groups_per_scale};
}

// Outputs of a tile: 16 but for the last.
constexpr int tile_outputs(std::int64_t outputs, std::int64_t tile) {
    return static_cast<int>(lesser(kTileOutputs, outputs - tile * kTileOutputs));
}

template <typename L>
typename L::F load_outputs(const float* y, int outputs) {
    return outputs == kTileOutputs ? L::load(y) : L::load_partial(y, outputs);
}

template <typename L>
void store_outputs(float* y, typename L::F sums, int outputs) {
    if (outputs == kTileOutputs) return L::store(y, sums);
    L::store_partial(y, sums, outputs);
}

template <typename L>
void store_scaled(float* y, typename L::F sums, float scale, int outputs) {
    store_outputs<L>(y, L::mul(sums, L::set(scale)), outputs);
}

template <typename L>
typename L::F load_scales(const PackedWeight& weight, std::int64_t row_of_scales) {
    const std::int64_t at = row_of_scales * kTileOutputs;
    if (weight.scale_format == ScaleFormat::f32) return L::load(static_cast<const float*>(weight.scales) + at);
    const std::uint16_t* halves = static_cast<const std::uint16_t*>(weight.scales) + at;
    return weight.scale_format == ScaleFormat::f16 ? L::load_f16(halves) : L::load_bf16(halves);
}

// A tile as it is stored. Scales and zero points are numbered by scale group.
template <typename D>
struct StoredTile {
    const PackedWeight& weight;
    const std::uint8_t* codes;
    std::int64_t first_scale;

    StoredTile(const PackedWeight& of, std::int64_t tile)
        : weight(of), codes(of.codes + tile * of.tile_bytes), first_scale(tile * of.scale_groups) {}

    typename D::Lanes::F scales(std::int64_t scale_group) const {
        return load_scales<typename D::Lanes>(weight, first_scale + scale_group);
    }
    bool has_zeros() const { return weight.zeros != nullptr; }
    std::int32_t middle() const { return middle_code(weight.bits); }  // every zero point, where there are none
    typename D::Totals zeros(std::int64_t scale_group) const {
        return D::load_zeros(weight.zeros + (first_scale + scale_group) * kTileOutputs);
    }
};

}  // namespace
}  // namespace octavo
