// The running softmax of a block of rows, one tile further: scores become weights.
//
//     highest' = max(highest, the tile's scores);  fade = exp(highest - highest');  weight = exp(score - highest')
//     total' = fma(total, fade, w[i] + w[i + 16] + w[i + 32] + w[i + 48])   for each of 16 lanes
//
// A tile that a row does not see has only scores of -infinity: its fade is 1, its weights 0, and nothing changes.
#pragma once

#include <cstdint>

#include "kernels/attention_block.hpp"
#include "lanes/math.hpp"

namespace octavo {
namespace {

constexpr float kHidden = -__builtin_inff();
constexpr float kLowest = -3.402823466e38f;  // the maximum before any score: finite, so that no difference is NaN

// What a block's rows carry from tile to tile.
struct BlockState {
    float* highest;  // [16], lane = row of the block; rows that are not there stay kLowest
    float* totals;   // [rows][16]
};

// (score * scale) * key scale, capped, on the slabs that were computed.
template <typename L, typename Element>
void finish_scores(const TileView<Element>& tile, TileRange range, float scale, float softcap, float* scores) {
    for (int slab = range.first_slab(); slab < range.end_slab(); ++slab) {
        typename L::F score = L::mul(L::load(scores + slab * kLanes), L::set(scale));
        if (tile.key_scales[slab]) score = L::mul(score, L::load(tile.key_scales[slab]));
        if (tile.key_scale != 1.0f) score = L::mul(score, L::set(tile.key_scale));
        if (softcap != 0.0f) score = capped<L>(score, L::set(softcap));
        L::store(scores + slab * kLanes, score);
    }
}

inline void hide_scores(TileRange seen, float* scores) {
    if (seen.is_empty()) seen = {0, 0};
    for (int i = 0; i < seen.low; ++i) scores[i] = kHidden;
    for (int i = seen.high; i < kKeyTile; ++i) scores[i] = kHidden;
}

template <typename L>
float highest_score(const float* scores) {
    const typename L::F low = L::max(L::load(scores), L::load(scores + kLanes));
    const typename L::F high = L::max(L::load(scores + 2 * kLanes), L::load(scores + 3 * kLanes));
    return L::largest(L::max(low, high));
}

// Weights in place of the scores, and the totals with them.
template <typename L>
void weigh_scores(float highest, float fade, float* scores, float* totals) {
    const typename L::F top = L::set(highest);
    typename L::F sum = L::zero();
    for (int slab = 0; slab < kTileSlabs; ++slab) {
        const typename L::F weight = exp<L>(L::sub(L::load(scores + slab * kLanes), top));
        L::store(scores + slab * kLanes, weight);
        sum = L::add(sum, weight);
    }
    L::store(totals, L::fma(L::load(totals), L::set(fade), sum));
}

// The new maxima and what they do to what was summed before. Most tiles raise none, and exp(0) is 1 exactly.
template <typename L>
void raise_highest(int num_rows, const float* tops, float* highest, float* fades) {
    bool is_raised = false;
    for (int r = 0; r < num_rows; ++r) is_raised |= !(tops[r] <= highest[r]);
    if (!is_raised) return L::store(fades, L::set(1.0f));
    const typename L::F before = L::load(highest), after = L::max(before, L::load(tops));
    L::store(fades, exp<L>(L::sub(before, after)));
    L::store(highest, after);
}

// Values that are codes: the weight of a position carries their scale, after the total was taken.
template <typename L, typename Element>
void scale_weights(const TileView<Element>& tile, TileRange range, float* weights) {
    for (int slab = range.first_slab(); slab < range.end_slab(); ++slab) {
        float* const weight = weights + slab * kLanes;
        if (tile.value_scales[slab]) L::store(weight, L::mul(L::load(weight), L::load(tile.value_scales[slab])));
        if (tile.value_scale != 1.0f) L::store(weight, L::mul(L::load(weight), L::set(tile.value_scale)));
    }
}

// scores [num_rows][kKeyTile] become weights; `seen` is each row's range. Writes fades [16].
template <typename L, int num_rows, typename Element>
void soften_block(const TileView<Element>& tile, TileRange range, const TileRange* seen, float scale, float softcap,
                  const BlockState& state, float* scores, float* fades) {
    float tops[kLanes];
    for (int r = 0; r < kLanes; ++r) tops[r] = kLowest;
    for (int r = 0; r < num_rows; ++r) {
        float* const row = scores + r * kKeyTile;
        finish_scores<L>(tile, range, scale, softcap, row);
        hide_scores(seen[r], row);
        tops[r] = highest_score<L>(row);
    }
    raise_highest<L>(num_rows, tops, state.highest, fades);
    for (int r = 0; r < num_rows; ++r) {
        float* const row = scores + r * kKeyTile;
        weigh_scores<L>(state.highest[r], fades[r], row, state.totals + r * kLanes);
        scale_weights<L>(tile, range, row);
    }
}

}  // namespace
}  // namespace octavo
