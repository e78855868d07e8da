// One tile of outputs against a few rows: groups of integer dot products, each scaled into the float sums.
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
    std::int32_t middle() const { return 1 << (weight.bits - 1); }  // every zero point, where there are none
    typename D::Totals zeros(std::int64_t scale_group) const {
        return D::load_zeros(weight.zeros + (first_scale + scale_group) * kTileOutputs);
    }
};

// totals = -(zero - centre) * sum of the activations, so that adding the dot product gives the exact bracket.
template <typename D, int code_bits, int rows, typename Tile>
[[gnu::always_inline]] inline void start_totals(const Tile& tile, std::int64_t scale_group, const QuantizedRows& x,
                                                std::int64_t group, typename D::Totals (&totals)[rows]) {
    using L = typename D::Lanes;
    constexpr std::int32_t centre = D::centre(code_bits);
    if (tile.has_zeros()) {
        const typename D::Totals offset = L::int_sub(L::int_set(centre), tile.zeros(scale_group));
        for (int row = 0; row < rows; ++row) {
            totals[row] = L::int_mul(offset, L::int_set(x.sums[row * x.groups + group]));
        }
    } else {
        const std::int32_t offset = centre - tile.middle();
        for (int row = 0; row < rows; ++row) totals[row] = L::int_set(offset * x.sums[row * x.groups + group]);
    }
}

// A few rows are bound by memory, and the processor's own prefetcher stops at the end of a page: codes are asked for
// one page ahead (measured on Zen 3: a decode step takes a fifth less than without, the head with 4 rows a third).
constexpr std::int64_t kFetchAhead = 4096;
constexpr int kFetchingRows = 4;

template <int stored, int code_bits, int rows>
[[gnu::always_inline]] inline void fetch_ahead(const std::uint8_t* octet) {
    if constexpr (stored == code_bits && rows <= kFetchingRows) {
        for (int line = 0; line < stored; ++line) __builtin_prefetch(octet + kFetchAhead + line * kStepBytes);
    }
}

// Quads [first, end) of a tile, numbered from `codes` and `x`.
template <typename D, int stored, int code_bits, int rows>
[[gnu::always_inline]] inline void dot_quads(const std::uint8_t* codes, const std::int8_t* x, std::int64_t x_stride,
                                             std::int64_t first, std::int64_t end, typename D::Totals (&totals)[rows]) {
    constexpr std::int64_t bytes = octet_bytes(stored);
    std::int64_t octet = first / 2;
    if (first % 2) {
        D::template dot<stored, code_bits, 4, 8>(codes + octet * bytes, x + octet * kOctetInputs, x_stride, totals);
        ++octet;
    }
    for (; octet < end / 2; ++octet) {
        fetch_ahead<stored, code_bits, rows>(codes + octet * bytes);
        D::template dot<stored, code_bits, 0, 8>(codes + octet * bytes, x + octet * kOctetInputs, x_stride, totals);
    }
    if (end % 2) {
        D::template dot<stored, code_bits, 0, 4>(codes + octet * bytes, x + octet * kOctetInputs, x_stride, totals);
    }
}

// sums[row] = fma(float(bracket), w_scale * x_scale, sums[row]) for the range's groups in order. The tile's codes begin
// with the range's first group, `x` and the tile's scales with group 0.
template <typename D, int stored, int code_bits, int rows, typename Tile>
inline void add_groups(const Tile& tile, const QuantizedRows& x, GroupRange range, typename D::Lanes::F (&sums)[rows]) {
    using L = typename D::Lanes;
    const std::int64_t base = range.first_quad();
    const std::int8_t* codes = x.codes + base * kQuadInputs;
    std::int64_t group = range.first;
    while (group < range.end) {
        const std::int64_t scale_group = group / range.per_scale;
        const std::int64_t same_scale_end = lesser((scale_group + 1) * range.per_scale, range.end);
        const typename L::F w_scale = tile.scales(scale_group);
        for (; group < same_scale_end; ++group) {
            const GroupRange one = range.part(group, group + 1);
            typename D::Totals totals[rows];
            start_totals<D, code_bits>(tile, scale_group, x, group, totals);
            const std::int64_t first = one.first_quad() - base, end = one.end_quad() - base;
            dot_quads<D, stored, code_bits>(tile.codes, codes, x.padded, first, end, totals);
            for (int row = 0; row < rows; ++row) {
                const typename L::F scale = L::mul(w_scale, L::set(x.scales[row * x.groups + group]));
                sums[row] = L::fma(L::to_float(totals[row]), scale, sums[row]);
            }
        }
    }
}

}  // namespace
}  // namespace octavo
