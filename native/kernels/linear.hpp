// The linear layer with quantized weights and activations: y = W x, 16 outputs a tile.
#pragma once

#include <cstddef>

#include "kernels/linear_panel.hpp"

namespace octavo {
namespace {

// Up to this many rows a tile's codes are unpacked again for every block of rows: cheaper than storing them unpacked.
// Codes of 8 bits are read as they are, whatever the number of rows.
constexpr std::int64_t kFewRows = 8;
// Activations of the rows that are done together: they stay in a second-level cache from tile to tile.
constexpr std::int64_t kBlockBytes = 256 * 1024;

template <typename D, int bits, int rows, typename Operands>
void few_rows_of_tile(const Operands& tile, const QuantizedRows& x, const GroupRange& range, float scale, int outputs,
                      Rows y) {
    using L = typename D::Lanes;
    typename L::F sums[rows];
    for (int row = 0; row < rows; ++row) sums[row] = L::zero();
    add_groups<D, bits, bits>(tile, x, range, sums);
    for (int row = 0; row < rows; ++row) store_scaled<L>(y.row(row), sums[row], scale, outputs);
}

template <typename D, int bits>
void one_row_linear(const PackedWeight& weight, const QuantizedRows& x, std::int64_t first_tile, std::int64_t end_tile,
                    Rows y) {
    const GroupRange range = whole_range(weight);
    for (std::int64_t tile = first_tile; tile < end_tile; ++tile) {
        const StoredOperands operands = stored_operands(StoredTile<D>(weight, tile));
        const Rows y_tile = y.from(0, (tile - first_tile) * kTileOutputs);
        few_rows_of_tile<D, bits, 1>(operands, x, range, weight.output_scale, tile_outputs(weight.outputs, tile),
                                     y_tile);
    }
}

template <typename D, int bits>
void few_rows_linear(const PackedWeight& weight, const QuantizedRows& x, std::int64_t num_rows, std::int64_t first_tile,
                     std::int64_t end_tile, Rows y, std::byte* scratch) {
    if (num_rows == 1 && can_stay_stored(weight)) return one_row_linear<D, bits>(weight, x, first_tile, end_tile, y);
    const GroupRange range = whole_range(weight);
    for (std::int64_t tile = first_tile; tile < end_tile; ++tile) {
        const StoredTile<D> stored(weight, tile);
        GroupOperands operands = load_operands(stored, range, scratch);
        operands.codes = stored.codes;
        const int outputs = tile_outputs(weight.outputs, tile);
        const Rows y_tile = y.from(0, (tile - first_tile) * kTileOutputs);
        for_row_blocks<kRowBlock>(num_rows, [&]<int rows>(std::int64_t row) {
            few_rows_of_tile<D, bits, rows>(operands, x.from(row), range, weight.output_scale, outputs,
                                            y_tile.from(row));
        });
    }
}

template <typename D>
void rows_linear(const PackedWeight& weight, const QuantizedRows& x, std::int64_t num_rows, std::int64_t first_tile,
                 std::int64_t end_tile, Rows y, std::byte* scratch) {
    if (weight.bits == 8) return few_rows_linear<D, 8>(weight, x, num_rows, first_tile, end_tile, y, scratch);
    if (num_rows > kFewRows) return many_rows_linear<D>(weight, x, num_rows, first_tile, end_tile, y, scratch);
    if (weight.bits == kFp4) return few_rows_linear<D, kFp4>(weight, x, num_rows, first_tile, end_tile, y, scratch);
    if (weight.bits == 4) return few_rows_linear<D, 4>(weight, x, num_rows, first_tile, end_tile, y, scratch);
    if (weight.bits == 3) return few_rows_linear<D, 3>(weight, x, num_rows, first_tile, end_tile, y, scratch);
    few_rows_linear<D, 2>(weight, x, num_rows, first_tile, end_tile, y, scratch);
}

template <typename D>
void packed_linear(const PackedWeight& weight, const QuantizedRows& x, std::int64_t num_rows, std::int64_t first_tile,
                   std::int64_t end_tile, Rows y, std::byte* scratch) {
    const std::int64_t blocks = num_rows * x.padded / kBlockBytes + 1;
    const std::int64_t block = round_up((num_rows + blocks - 1) / blocks, kRowBlock);
    for (std::int64_t row = 0; row < num_rows; row += block) {
        const std::int64_t rows = lesser(block, num_rows - row);
        rows_linear<D>(weight, x.from(row), rows, first_tile, end_tile, y.from(row), scratch);
    }
}

}  // namespace
}  // namespace octavo
