// Many rows, codes of less than 8 bits: a panel of a tile's codes is unpacked once and reused by all rows.
//
// Loops from outside: panels of inputs, tiles, blocks of kRowBlock rows. Sums live in `y` between panels, so every
// output still adds its groups in ascending order.
#pragma once

#include <cstddef>

#include "kernels/linear_groups.hpp"
#include "kernels/row_blocks.hpp"

namespace octavo {
namespace {

constexpr int kRowBlock = 4;
constexpr int kPanelBits = 4;                         // codes of a panel are below 2^4; FP4's below 2^5
constexpr std::int64_t kPanelInputs = 1536;           // 24 KiB of unpacked codes: most of a first-level cache
constexpr std::int64_t kPanelBytesPerInput = 16 + 8;  // codes; scales and offsets, at most one each for 16 inputs

template <typename D, int bits, int index = 0>
void unpack_octet(const std::uint8_t* octet, std::uint8_t* steps) {
    if constexpr (index < 8) {
        D::store_step(steps + index * kStepBytes, D::template step<bits, index>(octet));
        unpack_octet<D, bits, index + 1>(octet, steps);
    }
}

// Ranges begin with an even quad. An odd end unpacks half an octet more than is used.
template <typename D, int bits>
void unpack_codes(const StoredTile<D>& tile, const GroupRange& range, std::uint8_t* steps) {
    const std::int64_t first = range.first_quad() / 2, end = (range.end_quad() + 1) / 2;
    for (std::int64_t octet = first; octet < end; ++octet) {
        unpack_octet<D, bits>(tile.codes + octet * octet_bytes(bits), steps + (octet - first) * octet_bytes(8));
    }
}

// The range's operands with its codes unpacked, all in scratch.
template <typename D>
GroupOperands make_panel(const StoredTile<D>& tile, const GroupRange& range, std::byte* scratch) {
    auto* steps = reinterpret_cast<std::uint8_t*>(scratch);
    const std::int64_t octets = (range.end_quad() + 1) / 2 - range.first_quad() / 2;
    GroupOperands panel = load_operands(tile, range, scratch + octets * octet_bytes(8));
    const auto unpack = tile.weight.bits == kFp4 ? unpack_codes<D, kFp4>
                        : tile.weight.bits == 4  ? unpack_codes<D, 4>
                        : tile.weight.bits == 3  ? unpack_codes<D, 3>
                                                 : unpack_codes<D, 2>;
    unpack(tile, range, steps);
    panel.codes = steps;
    return panel;
}

// `scale` multiplies the sums behind the range: the weight's output scale where it is the last.
template <typename D, int code_bits>
void many_rows_of_tile(const GroupOperands& tile, const QuantizedRows& x, std::int64_t num_rows,
                       const GroupRange& range, float scale, int outputs, Rows y) {
    using L = typename D::Lanes;
    for_row_blocks<kRowBlock>(num_rows, [&]<int rows>(std::int64_t first_row) {
        const Rows out = y.from(first_row);
        typename L::F sums[rows];
        for (int row = 0; row < rows; ++row) {
            sums[row] = range.first == 0 ? L::zero() : load_outputs<L>(out.row(row), outputs);
        }
        add_groups<D, 8, code_bits>(tile, x.from(first_row), range, sums);
        for (int row = 0; row < rows; ++row) store_scaled<L>(out.row(row), sums[row], scale, outputs);
    });
}

// Groups of a panel: even, so that panels begin with whole octets.
inline std::int64_t panel_groups(const PackedWeight& weight) {
    const std::int64_t panels = (weight.inputs + kPanelInputs - 1) / kPanelInputs;
    return round_up((weight.groups + panels - 1) / panels, 2);
}

template <typename D>
void many_rows_linear(const PackedWeight& weight, const QuantizedRows& x, std::int64_t num_rows,
                      std::int64_t first_tile, std::int64_t end_tile, Rows y, std::byte* scratch) {
    const GroupRange all = whole_range(weight);
    const std::int64_t panel = panel_groups(weight);
    const auto multiply = weight.bits == kFp4 ? many_rows_of_tile<D, kFp4> : many_rows_of_tile<D, kPanelBits>;
    for (std::int64_t group = 0; group < weight.groups; group += panel) {
        const GroupRange range = all.part(group, lesser(group + panel, weight.groups));
        const float scale = range.end == weight.groups ? weight.output_scale : 1.0f;
        for (std::int64_t tile = first_tile; tile < end_tile; ++tile) {
            const StoredTile<D> stored(weight, tile);
            multiply(make_panel<D>(stored, range, scratch), x, num_rows, range, scale,
                     tile_outputs(weight.outputs, tile), y.from(0, (tile - first_tile) * kTileOutputs));
        }
    }
}

constexpr std::int64_t linear_scratch_bytes(std::int64_t most_inputs) {
    return padded_inputs(most_inputs) * kPanelBytesPerInput + operand_bytes(0);
}

}  // namespace
}  // namespace octavo
