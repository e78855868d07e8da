// One piece of attention: consecutive queries of one sequence, the query heads of one kv head, one range of keys.
//
// Keys are visited in tiles at fixed absolute positions, [0, kKeyTile), [kKeyTile, 2 kKeyTile) ..., and tiles form parts
// of kKeyPart positions, also at fixed absolute positions. Within a part a running softmax (Milakov and Gimelshein 2018;
// FlashAttention, Dao et al. 2022) visits its tiles in order; parts are joined in order by one formula. That cut is part
// of the definition of the result: it holds whether one thread computes all parts or each computes one, whatever the
// number of queries and heads computed together.
//
// A key that a query must not see (later positions, outside the window) has weight exactly 0 and leaves the running
// maximum alone, so visiting a tile that is hidden from a query changes none of its bits.
#pragma once

#include <cstdint>

namespace octavo {

constexpr std::int64_t kKeyTile = 64;
constexpr std::int64_t kKeyPart = 512;

struct AttentionShape {
    std::int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
    float scale = 1.0f;
    float softcap = 0.0f;     // 0: none; otherwise score = softcap * tanh(score / softcap), after scale
    std::int64_t window = 0;  // 0: everything before; otherwise the last `window` positions, the token's own included

    std::int64_t heads_per_kv() const { return num_heads / num_kv_heads; }
};

struct AttentionItem {
    const float* q = nullptr;   // query row 0, first head of the kv head's; heads are head_dim apart
    std::int64_t q_stride = 0;  // floats between query rows
    std::int64_t num_queries = 0;
    std::int64_t first_position = 0;  // of query row 0
    std::int64_t kv_head = 0;
    const std::int32_t* block_table = nullptr;
};

// What one part leaves for each (query, head): the weighted sum of values, not divided, with its maximum and total.
// Layout: row = query * heads_per_kv + head; output [rows][head_dim].
struct AttentionPart {
    float* output = nullptr;
    float* highest = nullptr;
    float* total = nullptr;
};

}  // namespace octavo
