// Attention over paged keys and values: one part of one item, tile by tile (attention_item.hpp defines the result).
//
// Rows (query, head) go through in blocks of up to six, which read keys and values where they lie and convert them in
// registers: on AVX2 that costs six rows nothing (the conversions run beside the multiplications), and a tile as it is
// stored takes half of the first-level cache or less. Memory is read once for all rows of the item.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention_softmax.hpp"
#include "kernels/kernels.hpp"

namespace octavo {
namespace {

// Scratch, in order.
struct AttentionScratch {
    const float** queries;    // [rows], where each row's head begins
    std::int32_t* positions;  // [rows], of each row's token
    float* highest;           // [blocks][16]
    float* totals;            // [rows][16]
    float* scores;            // [kBlockRows][kKeyTile]
    float* tile;              // a converted tile
    float* outputs;           // [rows][padded head_dim], where head_dim is not a multiple of 16
};

constexpr std::int64_t block_count(std::int64_t num_rows) { return (num_rows + kBlockRows - 1) / kBlockRows; }

struct AttentionScratchSize {
    std::int64_t rows, head_dim;

    // All in bytes, multiples of 64.
    std::int64_t padded() const { return round_up(head_dim, kLanes); }
    std::int64_t queries() const { return round_up(rows * 8, 64); }
    std::int64_t positions() const { return round_up(rows * 4, 64); }
    std::int64_t highest() const { return block_count(rows) * kLanes * 4; }
    std::int64_t totals() const { return rows * kLanes * 4; }
    std::int64_t scores() const { return kBlockRows * kKeyTile * 4; }
    std::int64_t tile() const { return kKeyTile * (head_dim + padded()) * 4; }
    std::int64_t outputs() const { return rows * padded() * 4; }
    std::int64_t bytes() const {
        return queries() + positions() + highest() + totals() + scores() + tile() + outputs();
    }

    AttentionScratch place(std::byte* scratch) const {
        AttentionScratch out;
        out.queries = reinterpret_cast<const float**>(scratch);
        out.positions = reinterpret_cast<std::int32_t*>(scratch += queries());
        out.highest = reinterpret_cast<float*>(scratch += positions());
        out.totals = reinterpret_cast<float*>(scratch += highest());
        out.scores = reinterpret_cast<float*>(scratch += totals());
        out.tile = reinterpret_cast<float*>(scratch += scores());
        out.outputs = reinterpret_cast<float*>(scratch += tile());
        return out;
    }
};

inline std::size_t attention_scratch_bytes(std::int64_t most_head_dim, std::int64_t most_heads_per_kv,
                                           std::int64_t most_queries) {
    const AttentionScratchSize size{most_queries * most_heads_per_kv, most_head_dim};
    return static_cast<std::size_t>(size.bytes());
}

// Everything that stays the same from tile to tile.
struct AttentionRun {
    AttentionShape shape;
    AttentionItem item;
    std::int64_t first, end;  // keys
    std::int64_t num_rows;
    std::int64_t num_blocks, rows_per_block, longer_blocks;
    AttentionScratch scratch;
    BlockOutput output;

    // Rows are spread evenly over the blocks, so that 8 rows are 4 + 4 and not 6 + 2.
    std::int64_t first_row(std::int64_t block) const {
        return block * rows_per_block + (block < longer_blocks ? block : longer_blocks);
    }

    // The keys that a row sees, cut to the tile.
    TileRange seen(std::int64_t row, std::int64_t tile) const {
        const std::int64_t position = scratch.positions[row];
        const std::int64_t oldest = shape.window > 0 ? position - shape.window + 1 : 0;
        const std::int64_t low = oldest > first ? oldest : first, high = position + 1 < end ? position + 1 : end;
        return range_in_tile(low, high, tile);
    }
    // From the first key of the first query to the last key of the last one.
    TileRange seen_by_any(std::int64_t first_row, std::int64_t end_row, std::int64_t tile) const {
        return {seen(first_row, tile).low, seen(end_row - 1, tile).high};
    }
};

inline void place_rows(const AttentionRun& run) {
    std::int64_t row = 0;
    for (std::int64_t query = 0; query < run.item.num_queries; ++query) {
        const float* const q = run.item.q + query * run.item.q_stride;
        for (std::int64_t head = 0; head < run.shape.heads_per_kv(); ++head, ++row) {
            run.scratch.queries[row] = q + head * run.shape.head_dim;
            run.scratch.positions[row] = static_cast<std::int32_t>(run.item.first_position + query);
        }
    }
}

template <typename L>
void clear_rows(const AttentionRun& run) {
    for (std::int64_t block = 0; block < run.num_blocks; ++block) {
        L::store(run.scratch.highest + block * kLanes, L::set(kLowest));
    }
    for (std::int64_t row = 0; row < run.num_rows; ++row) {
        L::store(run.scratch.totals + row * kLanes, L::zero());
        for (std::int64_t i = 0; i < run.output.stride; ++i) run.output.rows[row * run.output.stride + i] = 0.0f;
    }
}

constexpr float kNoFade[kLanes] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

// Rows `r` by themselves over what they see of `range`.
template <typename L, typename Element>
void value_rows(const TileView<Element>& tile, TileRange range, const TileRange* seen, int num_rows,
                const float* weights, BlockOutput output) {
    for (int r = 0; r < num_rows; ++r) {
        const TileRange own = {larger(range.low, seen[r].low), smaller(range.high, seen[r].high)};
        if (own.is_empty()) continue;
        const BlockOutput row = {output.rows + r * output.stride, output.stride};
        value_block<L, 1>(weights + r * kKeyTile, tile, own, kNoFade, output.stride, row);
    }
}

// Values that no row of the block sees, or only some, are not multiplied by a weight of zero: they may be NaN.
template <typename L, int num_rows, typename Element>
void add_values(const TileView<Element>& tile, const TileRange* seen, const float* weights, const float* fades,
                BlockOutput output) {
    TileRange all = seen[0];
    for (int r = 1; r < num_rows; ++r) all = {larger(all.low, seen[r].low), smaller(all.high, seen[r].high)};
    const int first = seen[0].low, end = seen[num_rows - 1].high;
    if (all.is_empty()) all = {first, first};
    if (first < all.low) {
        value_block<L, num_rows>(weights, tile, {0, 0}, fades, output.stride, output);
        value_rows<L>(tile, {first, all.low}, seen, num_rows, weights, output);
        fades = kNoFade;
    }
    value_block<L, num_rows>(weights, tile, all, fades, output.stride, output);
    if (all.high < end) value_rows<L>(tile, {all.high, end}, seen, num_rows, weights, output);
}

template <typename L, int num_rows, typename Element>
void attend_block(const AttentionRun& run, const TileView<Element>& view, std::int64_t tile, std::int64_t block) {
    const std::int64_t first_row = run.first_row(block);
    const TileRange range = run.seen_by_any(first_row, first_row + num_rows, tile);
    if (range.is_empty()) return;
    TileRange seen[num_rows];
    for (int r = 0; r < num_rows; ++r) seen[r] = run.seen(first_row + r, tile);
    const AttentionScratch& scratch = run.scratch;
    const BlockState state = {scratch.highest + block * kLanes, scratch.totals + first_row * kLanes};
    const BlockOutput output = {run.output.rows + first_row * run.output.stride, run.output.stride};
    float fades[kLanes];
    const std::int64_t head_dim = run.shape.head_dim;
    score_block<L, num_rows>(scratch.queries + first_row, head_dim, view, range, scratch.scores);
    soften_block<L, num_rows>(view, range, seen, run.shape.scale, run.shape.softcap, state, scratch.scores, fades);
    add_values<L, num_rows>(view, seen, scratch.scores, fades, output);
}

template <typename L, typename Element>
void attend_rows(const AttentionRun& run, const TileView<Element>& view, std::int64_t tile) {
    for (std::int64_t block = 0; block < run.num_blocks; ++block) {
        switch (run.first_row(block + 1) - run.first_row(block)) {
            case 1:
                attend_block<L, 1>(run, view, tile, block);
                break;
            case 2:
                attend_block<L, 2>(run, view, tile, block);
                break;
            case 3:
                attend_block<L, 3>(run, view, tile, block);
                break;
            case 4:
                attend_block<L, 4>(run, view, tile, block);
                break;
            case 5:
                attend_block<L, 5>(run, view, tile, block);
                break;
            default:
                attend_block<L, 6>(run, view, tile, block);
                break;
        }
    }
}

// What the caller asked for, from the running state.
template <typename L>
void leave_part(const AttentionRun& run, const AttentionPart& out) {
    for (std::int64_t block = 0; block < run.num_blocks; ++block) {
        for (std::int64_t row = run.first_row(block); row < run.first_row(block + 1); ++row) {
            out.highest[row] = run.scratch.highest[block * kLanes + row - run.first_row(block)];
            out.total[row] = L::sum(L::load(run.scratch.totals + row * kLanes));
        }
    }
    const std::int64_t head_dim = run.shape.head_dim;
    if (run.output.rows == out.output) return;
    for (std::int64_t row = 0; row < run.num_rows; ++row) {
        const float* const from = run.output.rows + row * run.output.stride;
        for (std::int64_t i = 0; i < head_dim; ++i) out.output[row * head_dim + i] = from[i];
    }
}

// The tile as the blocks hold it; empty if no query sees it.
template <typename Element>
TileView<Element> view_seen(const AttentionRun& run, const KvLayer& layer, std::int64_t tile) {
    const TileRange range = tile < run.end ? run.seen_by_any(0, run.num_rows, tile) : TileRange{0, 0};
    return range.is_empty() ? TileView<Element>{} : view_tile<Element>(layer, run.item, tile, range);
}

template <typename L, typename Element>
void attend_tiles(const AttentionRun& run, const KvLayer& layer) {
    const bool converts = run.shape.head_dim % kLanes != 0;
    TileView<Element> view = view_seen<Element>(run, layer, run.first);
    for (std::int64_t tile = run.first; tile < run.end; tile += kKeyTile) {
        const TileView<Element> next = view_seen<Element>(run, layer, tile + kKeyTile);
        look_ahead(view, next);
        if (converts) {
            const TileRange range = run.seen_by_any(0, run.num_rows, tile);
            attend_rows<L>(run, convert_tile<L>(view, run.shape.head_dim, range, run.scratch.tile), tile);
        } else {
            attend_rows<L>(run, view, tile);
        }
        view = next;
    }
}

template <typename L>
void attend_part(const AttentionShape& shape, const KvLayer& layer, const AttentionItem& item, std::int64_t first,
                 std::int64_t end, const AttentionPart& out, std::byte* scratch) {
    AttentionRun run = {shape, item, first, end, item.num_queries * shape.heads_per_kv(), 0, 0, 0, {}, {}};
    run.num_blocks = block_count(run.num_rows);
    run.rows_per_block = run.num_rows / run.num_blocks;
    run.longer_blocks = run.num_rows % run.num_blocks;
    const AttentionScratchSize size{run.num_rows, shape.head_dim};
    run.scratch = size.place(scratch);
    const bool is_whole = shape.head_dim % kLanes == 0;
    run.output = {is_whole ? out.output : run.scratch.outputs, size.padded()};
    place_rows(run);
    clear_rows<L>(run);
    switch (layer.format) {
        case KvFormat::f32:
            attend_tiles<L, float>(run, layer);
            break;
        case KvFormat::bf16:
            attend_tiles<L, std::uint16_t>(run, layer);
            break;
        case KvFormat::int8:
        case KvFormat::int8_fixed:
            attend_tiles<L, std::int8_t>(run, layer);
            break;
        case KvFormat::e4m3:
            attend_tiles<L, E4m3Code>(run, layer);
            break;
        case KvFormat::e5m2:
            attend_tiles<L, E5m2Code>(run, layer);
            break;
    }
    leave_part<L>(run, out);
}

}  // namespace
}  // namespace octavo
