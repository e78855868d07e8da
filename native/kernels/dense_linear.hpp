// The linear layer with float weights and activations (packed_weight.hpp defines the sums). FP8 codes are widened in
// registers.
//
// Few rows are bound by reading weights: several tiles at once hide the latency of the fma chains. Many rows are bound
// by fma: blocks of 6 rows and one tile, over panels of inputs that stay in cache as floats. Sums live in `y` between
// panels, so the chain of an output is the same either way.
#pragma once

#include <cstddef>

#include "kernels/linear_tile.hpp"
#include "kernels/row_blocks.hpp"

namespace octavo {
namespace {

constexpr int kDenseRowBlock = 6;
constexpr int kDenseTileBlock = 4;
constexpr std::int64_t kDenseFewRows = 6;
constexpr std::int64_t kDensePanelInputs = 256;        // 16 KiB of a tile's weights as floats
constexpr std::int64_t kDenseBlockBytes = 256 * 1024;  // activations of a block of rows, one panel

// Rows that share a panel: 6 chains of fma are what 16 registers hold, and too few to hide the latency of one where there
// are 32 of them.
template <typename L>
constexpr int dense_panel_rows() {
    if constexpr (requires { L::kBlockAccumulators; }) return L::kBlockAccumulators / 2;
    return kDenseRowBlock;
}

template <typename L, DenseFormat format>
typename L::F load_weights(const void* values, std::int64_t at) {
    if constexpr (format == DenseFormat::f32) return L::load(static_cast<const float*>(values) + at);
    if constexpr (format == DenseFormat::bf16) return L::load_bf16(static_cast<const std::uint16_t*>(values) + at);
    if constexpr (format == DenseFormat::f16) return L::load_f16(static_cast<const std::uint16_t*>(values) + at);
    if constexpr (format == DenseFormat::e4m3) return L::load_e4m3(static_cast<const std::uint8_t*>(values) + at);
    if constexpr (format == DenseFormat::e5m2) return L::load_e5m2(static_cast<const std::uint8_t*>(values) + at);
}

// 16 scales of a tile's group.
template <typename L>
typename L::F group_scales(const DenseWeight& weight, std::int64_t tile, std::int64_t group) {
    return L::load(weight.scales + (tile * weight.groups + group) * kTileOutputs);
}

template <typename L, int rows, int tiles>
[[gnu::always_inline]] inline void clear(typename L::F (&sums)[rows][tiles]) {
    for (auto& row : sums) {
        for (auto& sum : row) sum = L::zero();
    }
}

// sums[row][tile] over inputs [0, inputs): tile t's weights start at element `at + t * tile_stride` of `values`.
template <typename L, DenseFormat format, int rows, int tiles>
[[gnu::always_inline]] inline void dense_block(const void* values, std::int64_t at, std::int64_t tile_stride,
                                               ConstRows x, std::int64_t inputs, typename L::F (&sums)[rows][tiles]) {
    for (std::int64_t k = 0; k < inputs; ++k) {
        typename L::F weights[tiles];
        for (int tile = 0; tile < tiles; ++tile) {
            weights[tile] = load_weights<L, format>(values, at + tile * tile_stride + k * kTileOutputs);
        }
        for (int row = 0; row < rows; ++row) {
            const typename L::F activation = L::set(x.row(row)[k]);
            for (int tile = 0; tile < tiles; ++tile) {
                sums[row][tile] = L::fma(activation, weights[tile], sums[row][tile]);
            }
        }
    }
}

// sums = fma(part, scale, sums), group by group.
template <typename L, DenseFormat format, int rows, int tiles>
void add_scaled_groups(const DenseWeight& weight, ConstRows x, std::int64_t tile, typename L::F (&sums)[rows][tiles]) {
    const std::int64_t stride = weight.inputs * kTileOutputs;
    for (std::int64_t group = 0; group < weight.groups; ++group) {
        const std::int64_t first = group * weight.group, inputs = lesser(weight.group, weight.inputs - first);
        typename L::F parts[rows][tiles];
        clear<L>(parts);
        dense_block<L, format>(weight.values, tile * stride + first * kTileOutputs, stride, x.from(0, first), inputs,
                               parts);
        for (int t = 0; t < tiles; ++t) {
            const typename L::F scale = group_scales<L>(weight, tile + t, group);
            for (int row = 0; row < rows; ++row) sums[row][t] = L::fma(parts[row][t], scale, sums[row][t]);
        }
    }
}

// Tiles [tile, tile + tiles) for a few rows; y begins with the first of them.
template <typename L, DenseFormat format, int rows, int tiles>
void few_dense_rows(const DenseWeight& weight, ConstRows x, std::int64_t tile, Rows y) {
    typename L::F sums[rows][tiles];
    clear<L>(sums);
    if constexpr (is_fp8(format)) {
        add_scaled_groups<L, format>(weight, x, tile, sums);
    } else {
        const std::int64_t stride = weight.inputs * kTileOutputs;
        dense_block<L, format>(weight.values, tile * stride, stride, x, weight.inputs, sums);
    }
    for (int row = 0; row < rows; ++row) {
        for (int t = 0; t < tiles; ++t) {
            store_outputs<L>(y.row(row) + t * kTileOutputs, sums[row][t], tile_outputs(weight.outputs, tile + t));
        }
    }
}

template <typename L, DenseFormat format>
void few_rows_dense(const DenseWeight& weight, ConstRows x, std::int64_t num_rows, std::int64_t first_tile,
                    std::int64_t end_tile, Rows y) {
    for_row_blocks<kDenseRowBlock>(num_rows, [&]<int rows>(std::int64_t row) {
        constexpr int tiles = rows < kDenseTileBlock ? kDenseTileBlock / rows : 1;
        for_row_blocks<tiles>(end_tile - first_tile, [&]<int some>(std::int64_t tile) {
            const Rows out = y.from(row, tile * kTileOutputs);
            few_dense_rows<L, format, rows, some>(weight, x.from(row), first_tile + tile, out);
        });
    });
}

// One tile's weights of inputs [first, first + inputs) as floats [inputs][16]: in place, or converted to scratch.
template <typename L, DenseFormat format>
const float* dense_panel(const DenseWeight& weight, std::int64_t tile, std::int64_t first, std::int64_t inputs,
                         std::byte* scratch) {
    const std::int64_t at = (tile * weight.inputs + first) * kTileOutputs;
    if constexpr (format == DenseFormat::f32) return static_cast<const float*>(weight.values) + at;
    float* panel = reinterpret_cast<float*>(scratch);
    for (std::int64_t k = 0; k < inputs * kTileOutputs; k += kTileOutputs) {
        L::store(panel + k, load_weights<L, format>(weight.values, at + k));
    }
    return panel;
}

// A panel's share in the sums of a tile. `scales` [groups][16] or null; with them a group ends within the panel.
struct DensePanel {
    const float* values;  // [inputs][16]
    const float* scales;
    std::int64_t inputs, group;
    bool is_first;
};

// One chain over the panels, in y between them. With scales, one group: they follow the last panel.
template <typename L>
void many_dense_rows(const DensePanel& panel, ConstRows x, std::int64_t num_rows, int outputs, Rows y) {
    for_row_blocks<dense_panel_rows<L>()>(num_rows, [&]<int rows>(std::int64_t first_row) {
        const Rows out = y.from(first_row);
        typename L::F sums[rows][1];
        for (int row = 0; row < rows; ++row) {
            sums[row][0] = panel.is_first ? L::zero() : load_outputs<L>(out.row(row), outputs);
        }
        dense_block<L, DenseFormat::f32>(panel.values, 0, 0, x.from(first_row), panel.inputs, sums);
        for (int row = 0; row < rows; ++row) {
            if (panel.scales) sums[row][0] = L::fma(sums[row][0], L::load(panel.scales), L::zero());
            store_outputs<L>(out.row(row), sums[row][0], outputs);
        }
    });
}

// Whole groups in each panel.
template <typename L>
void many_scaled_rows(const DensePanel& panel, ConstRows x, std::int64_t num_rows, int outputs, Rows y) {
    for_row_blocks<dense_panel_rows<L>()>(num_rows, [&]<int rows>(std::int64_t first_row) {
        const Rows out = y.from(first_row);
        typename L::F sums[rows];
        for (int row = 0; row < rows; ++row) {
            sums[row] = panel.is_first ? L::zero() : load_outputs<L>(out.row(row), outputs);
        }
        for (std::int64_t first = 0; first < panel.inputs; first += panel.group) {
            typename L::F parts[rows][1];
            clear<L>(parts);
            dense_block<L, DenseFormat::f32>(panel.values, first * kTileOutputs, 0, x.from(first_row, first),
                                             lesser(panel.group, panel.inputs - first), parts);
            const typename L::F scale = L::load(panel.scales + first / panel.group * kTileOutputs);
            for (int row = 0; row < rows; ++row) sums[row] = L::fma(parts[row][0], scale, sums[row]);
        }
        for (int row = 0; row < rows; ++row) store_outputs<L>(out.row(row), sums[row], outputs);
    });
}

template <typename L, DenseFormat format>
void many_rows_of_dense_tile(const DenseWeight& weight, std::int64_t tile, std::int64_t first, ConstRows x,
                             std::int64_t num_rows, Rows y, std::byte* scratch) {
    const std::int64_t inputs = lesser(kDensePanelInputs, weight.inputs - first);
    const int outputs = tile_outputs(weight.outputs, tile);
    const float* values = dense_panel<L, format>(weight, tile, first, inputs, scratch);
    DensePanel panel = {values, nullptr, inputs, weight.group, first == 0};
    if constexpr (is_fp8(format)) {
        const bool is_last = first + inputs == weight.inputs;
        panel.scales = weight.scales + tile * weight.groups * kTileOutputs;
        if (weight.groups > 1) {
            panel.scales += first / weight.group * kTileOutputs;
            return many_scaled_rows<L>(panel, x, num_rows, outputs, y);
        }
        if (!is_last) panel.scales = nullptr;
    }
    many_dense_rows<L>(panel, x, num_rows, outputs, y);
}

template <typename L, DenseFormat format>
void many_rows_dense(const DenseWeight& weight, ConstRows x, std::int64_t num_rows, std::int64_t first_tile,
                     std::int64_t end_tile, Rows y, std::byte* scratch) {
    constexpr std::int64_t most = kDenseBlockBytes / (4 * kDensePanelInputs);
    constexpr std::int64_t block = most / dense_panel_rows<L>() * dense_panel_rows<L>();
    for (std::int64_t row = 0; row < num_rows; row += block) {
        for (std::int64_t first = 0; first < weight.inputs; first += kDensePanelInputs) {
            for (std::int64_t tile = first_tile; tile < end_tile; ++tile) {
                many_rows_of_dense_tile<L, format>(weight, tile, first, x.from(row, first),
                                                   lesser(block, num_rows - row),
                                                   y.from(row, (tile - first_tile) * kTileOutputs), scratch);
            }
        }
    }
}

template <typename L, DenseFormat format>
void dense_of_format(const DenseWeight& weight, ConstRows x, std::int64_t num_rows, std::int64_t first_tile,
                     std::int64_t end_tile, Rows y, std::byte* scratch) {
    if (num_rows <= kDenseFewRows) return few_rows_dense<L, format>(weight, x, num_rows, first_tile, end_tile, y);
    many_rows_dense<L, format>(weight, x, num_rows, first_tile, end_tile, y, scratch);
}

template <typename L>
void dense_linear(const DenseWeight& weight, ConstRows x, std::int64_t num_rows, std::int64_t first_tile,
                  std::int64_t end_tile, Rows y, std::byte* scratch) {
    const auto run = weight.format == DenseFormat::f32    ? dense_of_format<L, DenseFormat::f32>
                     : weight.format == DenseFormat::bf16 ? dense_of_format<L, DenseFormat::bf16>
                     : weight.format == DenseFormat::f16  ? dense_of_format<L, DenseFormat::f16>
                     : weight.format == DenseFormat::e4m3 ? dense_of_format<L, DenseFormat::e4m3>
                                                          : dense_of_format<L, DenseFormat::e5m2>;
    run(weight, x, num_rows, first_tile, end_tile, y, scratch);
}

constexpr std::int64_t dense_scratch_bytes() { return kDensePanelInputs * kTileOutputs * 4; }

}  // namespace
}  // namespace octavo
