// Keys and values of one layer, in blocks of `block_size` positions (a multiple of 16).
//
//     one block, one kv head:   keys    [head_dim][block_size]     positions in lanes: scores need no sums across lanes
//                               values  [block_size][head_dim]
//     int8 only:                key_scales, value_scales  float32 [block_size]   one scale a token and head
//     int8_fixed, e4m3:         one calibrated scale for each kv head's keys and one for its values (`head_scales`)
//     e5m2:                     no scales: its range needs none
//
//     block b of the layer starts at base + b * block_bytes; within it head h at + h * head_bytes:
//     | keys | values | key_scales | value_scales |
//
// int8 is symmetric, absmax / 127, rounded as activations are; with a fixed scale x / scale, at most 127 (448 for e4m3).
// Rows of values are head_dim elements with no padding; a
// block's memory starts zeroed, so that unwritten positions are finite.
#pragma once

#include <cstddef>
#include <cstdint>

namespace octavo {

enum class KvFormat : std::int32_t { f32, bf16, int8, int8_fixed, e4m3, e5m2 };

constexpr bool has_head_scales(KvFormat format) { return format == KvFormat::int8_fixed || format == KvFormat::e4m3; }

constexpr std::int64_t element_bytes(KvFormat format) {
    return format == KvFormat::f32 ? 4 : format == KvFormat::bf16 ? 2 : 1;
}

struct KvLayer {
    std::byte* base = nullptr;
    std::int64_t block_bytes = 0;
    std::int64_t block_size = 0;
    std::int64_t num_kv_heads = 0;
    std::int64_t head_dim = 0;
    KvFormat format = KvFormat::bf16;
    const float* head_scales = nullptr;  // [2][num_kv_heads], keys' before values'; null unless has_head_scales(format)

    std::int64_t plane_bytes() const { return block_size * head_dim * element_bytes(format); }
    std::int64_t scale_bytes() const { return format == KvFormat::int8 ? block_size * 4 : 0; }
    std::int64_t head_bytes() const { return 2 * plane_bytes() + 2 * scale_bytes(); }
    float key_scale(std::int64_t head) const { return head_scales ? head_scales[head] : 1.0f; }
    float value_scale(std::int64_t head) const { return head_scales ? head_scales[num_kv_heads + head] : 1.0f; }
    std::byte* keys(std::int64_t block, std::int64_t head) const {
        return base + block * block_bytes + head * head_bytes();
    }
    std::byte* values(std::int64_t block, std::int64_t head) const { return keys(block, head) + plane_bytes(); }
    float* key_scales(std::int64_t block, std::int64_t head) const {
        return reinterpret_cast<float*>(keys(block, head) + 2 * plane_bytes());
    }
    float* value_scales(std::int64_t block, std::int64_t head) const {
        return reinterpret_cast<float*>(keys(block, head) + 2 * plane_bytes() + scale_bytes());
    }
};

}  // namespace octavo
