// The inner loops: groups of integer dot products of one tile and a few rows, each scaled into the float sums.
//
// They know nothing of formats and branch on nothing but the number of octets: a branch more keeps gcc from holding the
// totals in registers, which was measured to cost a third.
#pragma once

#include "kernels/linear_tile.hpp"

namespace octavo {
namespace {

// What the loops read of a tile, from a range's first group on: codes, and for each group 16 scales and 16 integers
// that a row's sum is multiplied by before the dot product is added: centre - zero point.
struct GroupOperands {
    const std::uint8_t* codes;
    const float* scales;
    const std::int32_t* offsets;
    std::int64_t offset_stride;  // 0: the same for all groups
};

// Bytes that the scales and offsets of a range take, at most.
constexpr std::int64_t operand_bytes(std::int64_t groups) { return groups * 2 * kTileOutputs * 4 + kTileOutputs * 4; }

// Writes the range's scales and offsets to `memory`; codes are left to the caller.
template <typename D>
GroupOperands load_operands(const StoredTile<D>& tile, GroupRange range, std::byte* memory) {
    using L = typename D::Lanes;
    const std::int32_t centre = D::centre(tile.weight.bits);
    const std::int64_t groups = range.end - range.first;
    float* scales = reinterpret_cast<float*>(memory);
    std::int32_t* offsets = reinterpret_cast<std::int32_t*>(scales + groups * kTileOutputs);
    for (std::int64_t i = 0; i < groups; ++i) {
        const std::int64_t scale_group = (range.first + i) / range.per_scale;
        L::store(scales + i * kTileOutputs, tile.scales(scale_group));
        if (!tile.has_zeros()) continue;
        L::int_store(offsets + i * kTileOutputs, L::int_sub(L::int_set(centre), tile.zeros(scale_group)));
    }
    if (!tile.has_zeros()) L::int_store(offsets, L::int_set(centre - tile.middle()));
    return {nullptr, scales, offsets, tile.has_zeros() ? kTileOutputs : 0};
}

// The same, where they are stored: a row alone meets each scale once, and copying them first was measured to cost a
// twentieth of a decode step. float16 scales, one for each group, and no zero points.
struct StoredOperands {
    const std::uint8_t* codes;
    const std::uint16_t* scales;
    std::int32_t offset;
};

inline bool can_stay_stored(const PackedWeight& weight) {
    return weight.scale_format == ScaleFormat::f16 && weight.groups_per_scale == 1 && weight.zeros == nullptr;
}

template <typename D>
StoredOperands stored_operands(const StoredTile<D>& tile) {
    const std::uint16_t* scales =
        static_cast<const std::uint16_t*>(tile.weight.scales) + tile.first_scale * kTileOutputs;
    return {tile.codes, scales, D::centre(tile.weight.bits) - tile.middle()};
}

template <typename L>
typename L::F scales_of(const GroupOperands& tile, std::int64_t index) {
    return L::load(tile.scales + index * kTileOutputs);
}
template <typename L>
typename L::F scales_of(const StoredOperands& tile, std::int64_t index) {
    return L::load_f16(tile.scales + index * kTileOutputs);
}
template <typename L>
typename L::I offsets_of(const GroupOperands& tile, std::int64_t index) {
    return L::int_load(tile.offsets + index * tile.offset_stride);
}
template <typename L>
typename L::I offsets_of(const StoredOperands& tile, std::int64_t) {
    return L::int_set(tile.offset);
}

// A few rows are bound by memory, and the processor's own prefetcher stops at the end of a page: codes are asked for
// one page ahead (measured on Zen 3: a decode step takes a fifth less than without, the head with 4 rows a third).
constexpr std::int64_t kFetchAhead = 4096;

template <int stored, int code_bits>
[[gnu::always_inline]] inline void fetch_ahead(const std::uint8_t* octet) {
    if constexpr (stored == code_bits) {
        for (int line = 0; line < storage_bits(stored); ++line)
            __builtin_prefetch(octet + kFetchAhead + line * kStepBytes);
    }
}

template <typename D, typename Operands, int rows>
[[gnu::always_inline]] inline void start_totals(const Operands& tile, const QuantizedRows& x, std::int64_t index,
                                                std::int64_t group, typename D::Totals (&totals)[rows]) {
    using L = typename D::Lanes;
    const typename L::I offset = offsets_of<L>(tile, index);
    for (int row = 0; row < rows; ++row) {
        totals[row] = L::int_mul(offset, L::int_set(x.sums[row * x.groups + group]));
    }
}

// sums = fma(float(bracket), w_scale * x_scale, sums)
template <typename D, typename Operands, int rows>
[[gnu::always_inline]] inline void scale_totals(const Operands& tile, const QuantizedRows& x, std::int64_t index,
                                                std::int64_t group, const typename D::Totals (&totals)[rows],
                                                typename D::Lanes::F (&sums)[rows]) {
    using L = typename D::Lanes;
    const typename L::F w_scale = scales_of<L>(tile, index);
    for (int row = 0; row < rows; ++row) {
        const typename L::F scale = L::mul(w_scale, L::set(x.scales[row * x.groups + group]));
        sums[row] = L::fma(L::to_float(totals[row]), scale, sums[row]);
    }
}

// Groups of whole octets.
template <typename D, int stored, int code_bits, typename Operands, int rows>
inline void add_octet_groups(const Operands& tile, const QuantizedRows& x, GroupRange range,
                             typename D::Lanes::F (&sums)[rows]) {
    const std::int64_t octets_per_group = range.quads / 2, all_octets = range.num_quads / 2;
    std::int64_t octet = range.first * octets_per_group;
    const std::uint8_t* codes = tile.codes;
    for (std::int64_t group = range.first; group < range.end; ++group) {
        const std::int64_t end = lesser((group + 1) * octets_per_group, all_octets);
        typename D::Totals totals[rows];
        start_totals<D>(tile, x, group - range.first, group, totals);
        for (; octet < end; ++octet, codes += octet_bytes(stored)) {
            fetch_ahead<stored, code_bits>(codes);
            D::template dot<stored, code_bits, 0, 8>(codes, x.codes + octet * kOctetInputs, x.padded, totals);
        }
        scale_totals<D>(tile, x, group - range.first, group, totals, sums);
    }
}

// One group of half an octet, the first or the second.
template <typename D, int stored, int code_bits, int first, typename Operands, int rows>
[[gnu::always_inline]] inline void add_quad_group(const Operands& tile, const QuantizedRows& x, std::int64_t index,
                                                  std::int64_t group, typename D::Lanes::F (&sums)[rows]) {
    typename D::Totals totals[rows];
    start_totals<D>(tile, x, index, group, totals);
    D::template dot<stored, code_bits, first, first + 4>(tile.codes + index / 2 * octet_bytes(stored),
                                                         x.codes + group / 2 * kOctetInputs, x.padded, totals);
    scale_totals<D>(tile, x, index, group, totals, sums);
}

// Groups of half an octet; the range begins with an even one.
template <typename D, int stored, int code_bits, typename Operands, int rows>
inline void add_quad_groups(const Operands& tile, const QuantizedRows& x, GroupRange range,
                            typename D::Lanes::F (&sums)[rows]) {
    for (std::int64_t group = range.first; group < range.end; group += 2) {
        const std::int64_t index = group - range.first;
        fetch_ahead<stored, code_bits>(tile.codes + index / 2 * octet_bytes(stored));
        add_quad_group<D, stored, code_bits, 0>(tile, x, index, group, sums);
        if (group + 1 == range.end) break;
        add_quad_group<D, stored, code_bits, 4>(tile, x, index + 1, group + 1, sums);
    }
}

// The range's groups in order into `sums`. `x` begins with the row's first group; a group is one quad or whole octets.
template <typename D, int stored, int code_bits, typename Operands, int rows>
inline void add_groups(const Operands& tile, const QuantizedRows& x, GroupRange range,
                       typename D::Lanes::F (&sums)[rows]) {
    if (range.quads == 1) return add_quad_groups<D, stored, code_bits>(tile, x, range, sums);
    add_octet_groups<D, stored, code_bits>(tile, x, range, sums);
}

}  // namespace
}  // namespace octavo
