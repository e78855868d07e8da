// The linear layer with quantized weights and activations: y = W x, 16 outputs a tile.
#pragma once

#include <cstddef>

#include "kernels/linear_panel.hpp"
#include "kernels/linear_tile.hpp"

namespace octavo {
namespace {

// Up to this many rows a tile's codes are unpacked again for every block of rows: cheaper than storing them unpacked.
constexpr std::int64_t kFewRows = 8;

template <typename D, int bits, int rows>
void few_rows_of_tile(const PackedWeight& weight, const StoredTile<D>& tile, const QuantizedRows& x, int outputs, Rows y) {
    using L = typename D::Lanes;
    typename L::F sums[rows];
    for (int row = 0; row < rows; ++row) sums[row] = L::zero();
    add_groups<D, bits, bits>(tile, x, whole_range(weight), sums);
    for (int row = 0; row < rows; ++row) store_outputs<L>(y.row(row), sums[row], outputs);
}

template <typename D, int bits>
void few_rows_linear(const PackedWeight& weight, const QuantizedRows& x, std::int64_t num_rows, std::int64_t first_tile,
                     std::int64_t end_tile, Rows y) {
    for (std::int64_t tile = first_tile; tile < end_tile; ++tile) {
        const StoredTile<D> stored(weight, tile);
        const int outputs = tile_outputs(weight.outputs, tile);
        const Rows y_tile = y.from(0, (tile - first_tile) * kTileOutputs);
        for_row_blocks<kRowBlock>(num_rows, [&]<int rows>(std::int64_t row) {
            few_rows_of_tile<D, bits, rows>(weight, stored, x.from(row), outputs, y_tile.from(row));
        });
    }
}

template <typename D, int bits>
void linear_of_bits(const PackedWeight& weight, const QuantizedRows& x, std::int64_t num_rows, std::int64_t first_tile,
                    std::int64_t end_tile, Rows y, std::byte* scratch) {
    if (num_rows <= kFewRows) return few_rows_linear<D, bits>(weight, x, num_rows, first_tile, end_tile, y);
    many_rows_linear<D, bits>(weight, x, num_rows, first_tile, end_tile, y, scratch);
}

template <typename D>
void packed_linear(const PackedWeight& weight, const QuantizedRows& x, std::int64_t num_rows, std::int64_t first_tile,
                   std::int64_t end_tile, Rows y, std::byte* scratch) {
    if (weight.bits == 8) return linear_of_bits<D, 8>(weight, x, num_rows, first_tile, end_tile, y, scratch);
    if (weight.bits == 4) return linear_of_bits<D, 4>(weight, x, num_rows, first_tile, end_tile, y, scratch);
    if (weight.bits == 3) return linear_of_bits<D, 3>(weight, x, num_rows, first_tile, end_tile, y, scratch);
    linear_of_bits<D, 2>(weight, x, num_rows, first_tile, end_tile, y, scratch);
}

}  // namespace
}  // namespace octavo
