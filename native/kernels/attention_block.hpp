// The two products of attention for a block of 1 to 6 rows that stays in registers: scores = q . keys, and
// output += weights . values. A row is one query head of one token.
//
// One accumulator for each (row, lane), positions and features in ascending order: the bits of a row depend neither on
// how many rows or columns are computed together, nor on whether the tile was converted first.
#pragma once

#include <cstdint>

#include "kernels/attention_tile.hpp"

namespace octavo {
namespace {

constexpr int kBlockRows = 6;

// Accumulators that fit beside their operands: 16 registers of 8 floats hold six of 16 lanes (an instruction set with
// more room says so).
template <typename L>
constexpr int block_accumulators() {
    if constexpr (requires { L::kBlockAccumulators; }) {
        return L::kBlockAccumulators;
    } else {
        return kBlockRows;
    }
}

// Columns of 16 lanes computed together for `num_rows` rows.
template <typename L, int num_rows>
constexpr int block_columns() {
    constexpr int fit = block_accumulators<L>() / num_rows;
    return fit >= 4 ? 4 : fit >= 2 ? 2 : 1;
}

template <typename L, int num_rows, int num_columns>
struct Accumulators {
    typename L::F sum[num_rows][num_columns];

    // sum[r][c] += left(r, index) * right[c][offset ..]. The compiler is kept from holding what it broadcast for the next
    // column: it would have to spill accumulators. The same place of the next tile is fetched meanwhile: fetched all at once,
    // a tile would hold up every load behind it.
    template <typename Left, typename Element>
    [[gnu::always_inline]] void add(Left left, std::int64_t index, const Element* const* right,
                                    const Element* const* ahead, std::int64_t offset) {
#pragma GCC unroll 4
        for (int c = 0; c < num_columns; ++c) {
            const typename L::F element = load_elements<L>(right[c] + offset);
            __builtin_prefetch(ahead[c] + offset);
            if (c > 0) asm("" : "+r"(index));
#pragma GCC unroll 6
            for (int r = 0; r < num_rows; ++r) sum[r][c] = L::fma(L::set(left(r, index)), element, sum[r][c]);
        }
    }
};

// Rows of q [head_dim]; scores [num_rows][kKeyTile] not yet scaled, of `num_columns` slabs from `slab`. Not inlined, so that
// the loop has all registers for itself.
template <typename L, int num_rows, int num_columns, typename Element>
[[gnu::noinline]] void score_columns(const float* const* rows, std::int64_t head_dim, const TileView<Element>& tile,
                                     int slab, float* scores) {
    Accumulators<L, num_rows, num_columns> block = {};
    const float* q[num_rows];
    for (int r = 0; r < num_rows; ++r) q[r] = rows[r];
    const Element *keys[num_columns], *ahead[num_columns];
    for (int c = 0; c < num_columns; ++c) keys[c] = tile.keys[slab + c], ahead[c] = tile.keys_ahead[slab + c];
    const std::int64_t stride = tile.key_stride;
    for (std::int64_t d = 0; d < head_dim; ++d) {
        block.add([&](int r, std::int64_t i) { return q[r][i]; }, d, keys, ahead, d * stride);
    }
#pragma GCC unroll 6
    for (int r = 0; r < num_rows; ++r) {
#pragma GCC unroll 4
        for (int c = 0; c < num_columns; ++c) L::store(scores + r * kKeyTile + (slab + c) * kLanes, block.sum[r][c]);
    }
}

template <typename L, int num_rows, typename Element>
void score_block(const float* const* q, std::int64_t head_dim, const TileView<Element>& tile, TileRange range,
                 float* scores) {
    constexpr int columns = block_columns<L, num_rows>();
    int slab = range.first_slab();
    for (; slab + columns <= range.end_slab(); slab += columns) {
        score_columns<L, num_rows, columns>(q, head_dim, tile, slab, scores);
    }
    for (; slab < range.end_slab(); ++slab) score_columns<L, num_rows, 1>(q, head_dim, tile, slab, scores);
}

// The running outputs of a block's rows, `stride` floats apart.
struct BlockOutput {
    float* rows;
    std::int64_t stride;
};

// output = output * fade + weights [num_rows][kKeyTile] . values, for `num_columns` columns from `feature`.
template <typename L, int num_rows, int num_columns, typename Element>
[[gnu::noinline]] void value_columns(const float* weights, const TileView<Element>& tile, TileRange range,
                                     const float* fades, std::int64_t feature, BlockOutput output) {
    Accumulators<L, num_rows, num_columns> block;
    float* const out = output.rows + feature;
#pragma GCC unroll 6
    for (int r = 0; r < num_rows; ++r) {
#pragma GCC unroll 4
        for (int c = 0; c < num_columns; ++c) {
            block.sum[r][c] = L::mul(L::load(out + r * output.stride + c * kLanes), L::set(fades[r]));
        }
    }
    const std::int64_t stride = tile.value_stride;
    for (int slab = range.first_slab(); slab < range.end_slab(); ++slab) {
        const int start = slab * kLanes, low = larger(range.low, start), high = smaller(range.high, start + kLanes);
        const Element *values[num_columns], *ahead[num_columns];
        for (int c = 0; c < num_columns; ++c) {
            values[c] = tile.values[slab] + feature + c * kLanes;
            ahead[c] = tile.values_ahead[slab] + feature + c * kLanes;
        }
        const auto weight = [&](int r, std::int64_t i) { return weights[r * kKeyTile + i]; };
        for (int i = low; i < high; ++i) block.add(weight, i, values, ahead, (i - start) * stride);
    }
#pragma GCC unroll 6
    for (int r = 0; r < num_rows; ++r) {
#pragma GCC unroll 4
        for (int c = 0; c < num_columns; ++c) L::store(out + r * output.stride + c * kLanes, block.sum[r][c]);
    }
}

// `features` is a multiple of 16.
template <typename L, int num_rows, typename Element>
void value_block(const float* weights, const TileView<Element>& tile, TileRange range, const float* fades,
                 std::int64_t features, BlockOutput output) {
    constexpr int columns = block_columns<L, num_rows>();
    std::int64_t feature = 0;
    for (; feature + columns * kLanes <= features; feature += columns * kLanes) {
        value_columns<L, num_rows, columns>(weights, tile, range, fades, feature, output);
    }
    for (; feature < features; feature += kLanes) {
        value_columns<L, num_rows, 1>(weights, tile, range, fades, feature, output);
    }
}

}  // namespace
}  // namespace octavo
