// Where the keys and values of one tile lie: four slabs of 16 positions, in their blocks, or, if rows of values are not
// whole lanes, converted to float in scratch. A slab never straddles blocks, since block sizes are multiples of 16.
#pragma once

#include <cstdint>

#include "kernels/attention_item.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/kv_layer.hpp"
#include "kernels/packed_weight.hpp"

namespace octavo {
namespace {

constexpr int kTileSlabs = static_cast<int>(kKeyTile) / kLanes;

// Positions [low, high) within a tile.
struct TileRange {
    int low, high;

    bool is_empty() const { return low >= high; }
    int first_slab() const { return low / kLanes; }
    int end_slab() const { return (high + kLanes - 1) / kLanes; }
};

constexpr int smaller(int a, int b) { return a < b ? a : b; }
constexpr int larger(int a, int b) { return a > b ? a : b; }

// The part of positions [first, end) that lies in the tile.
constexpr TileRange range_in_tile(std::int64_t first, std::int64_t end, std::int64_t tile) {
    const std::int64_t low = first < tile ? 0 : first - tile, high = end - tile;
    return {low > kKeyTile ? static_cast<int>(kKeyTile) : static_cast<int>(low), high < 0 ? 0
                                                                                 : high > kKeyTile
                                                                                     ? static_cast<int>(kKeyTile)
                                                                                     : static_cast<int>(high)};
}

// Elements that are FP8 codes.
struct E4m3Code {
    std::uint8_t bits;
};
struct E5m2Code {
    std::uint8_t bits;
};

template <typename Element>
struct TileView {
    const Element* keys[kTileSlabs];        // slab: [head_dim][key_stride], the first 16 of each row are its positions
    const Element* values[kTileSlabs];      // slab: [16][value_stride]
    const Element* keys_ahead[kTileSlabs];  // of the next tile, to be fetched; or the same again
    const Element* values_ahead[kTileSlabs];
    const float* key_scales[kTileSlabs];  // [16]; null unless int8
    const float* value_scales[kTileSlabs];
    std::int64_t key_stride, value_stride;
    float key_scale, value_scale;  // of all positions; 1 without calibrated scales
};

// Only the slabs of `range` are looked up: the block table may end there.
template <typename Element>
TileView<Element> view_tile(const KvLayer& layer, const AttentionItem& item, std::int64_t tile, TileRange range) {
    TileView<Element> view = {};
    view.key_stride = layer.block_size;
    view.value_stride = layer.head_dim;
    const float unit = layer.format == KvFormat::e4m3 ? fp8_unit(DenseFormat::e4m3) : 1.0f;
    view.key_scale = layer.key_scale(item.kv_head) * unit;
    view.value_scale = layer.value_scale(item.kv_head) * unit;
    for (int slab = range.first_slab(); slab < range.end_slab(); ++slab) {
        const std::int64_t position = tile + slab * kLanes, offset = position % layer.block_size;
        const std::int64_t block = item.block_table[position / layer.block_size];
        const auto* const keys = reinterpret_cast<const Element*>(layer.keys(block, item.kv_head));
        const auto* const values = reinterpret_cast<const Element*>(layer.values(block, item.kv_head));
        view.keys[slab] = view.keys_ahead[slab] = keys + offset;
        view.values[slab] = view.values_ahead[slab] = values + offset * layer.head_dim;
        if (layer.format == KvFormat::int8) {
            view.key_scales[slab] = layer.key_scales(block, item.kv_head) + offset;
            view.value_scales[slab] = layer.value_scales(block, item.kv_head) + offset;
        }
    }
    return view;
}

template <typename Element>
void look_ahead(TileView<Element>& tile, const TileView<Element>& next) {
    for (int slab = 0; slab < kTileSlabs; ++slab) {
        if (!next.keys[slab]) continue;
        tile.keys_ahead[slab] = next.keys[slab];
        tile.values_ahead[slab] = next.values[slab];
    }
}

template <typename L>
[[gnu::always_inline]] inline typename L::F load_elements(const float* p) {
    return L::load(p);
}
template <typename L>
[[gnu::always_inline]] inline typename L::F load_elements(const std::uint16_t* p) {
    return L::load_bf16(p);
}
template <typename L>
[[gnu::always_inline]] inline typename L::F load_elements(const std::int8_t* p) {
    return L::load_i8(p);
}
template <typename L>
[[gnu::always_inline]] inline typename L::F load_elements(const E4m3Code* p) {
    return L::load_e4m3(&p->bits);
}
template <typename L>
[[gnu::always_inline]] inline typename L::F load_elements(const E5m2Code* p) {
    return L::load_e5m2(&p->bits);
}

// `count` elements that may be the last of their block, so that nothing behind them is read.
template <typename L, typename Element>
typename L::F load_few_elements(const Element* p, int count) {
    Element padded[kLanes] = {};
    for (int i = 0; i < count; ++i) padded[i] = p[i];
    return load_elements<L>(padded);
}

// Floats of a tile: keys [slab][head_dim][16], then values [64][head_dim rounded up to 16].
template <typename L, typename Element>
TileView<float> convert_tile(const TileView<Element>& tile, std::int64_t head_dim, TileRange range, float* scratch) {
    const std::int64_t padded = round_up(head_dim, kLanes);
    TileView<float> out = {};
    out.key_stride = kLanes;
    out.value_stride = padded;
    out.key_scale = tile.key_scale;
    out.value_scale = tile.value_scale;
    for (int slab = range.first_slab(); slab < range.end_slab(); ++slab) {
        float* const keys = scratch + slab * head_dim * kLanes;
        float* const values = scratch + kKeyTile * head_dim + slab * kLanes * padded;
        for (std::int64_t d = 0; d < head_dim; ++d) {
            L::store(keys + d * kLanes, load_elements<L>(tile.keys[slab] + d * tile.key_stride));
        }
        for (int row = 0; row < kLanes; ++row) {
            each_lanes(head_dim, [&](std::int64_t i, int count) {
                const Element* const from = tile.values[slab] + row * tile.value_stride + i;
                const typename L::F v = count == kLanes ? load_elements<L>(from) : load_few_elements<L>(from, count);
                L::store(values + row * padded + i, v);
            });
        }
        out.keys[slab] = out.keys_ahead[slab] = keys;
        out.values[slab] = out.values_ahead[slab] = values;
        out.key_scales[slab] = tile.key_scales[slab];
        out.value_scales[slab] = tile.value_scales[slab];
    }
    return out;
}

}  // namespace
}  // namespace octavo
