// Storing one token's key and value of one head. Keys are transposed on the way in (see kv_layer.hpp): a token is written
// once and read at every later step.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/kv_layer.hpp"
#include "kernels/quantize_row.hpp"

namespace octavo {
namespace {

constexpr int kWriteFeatures = 256;  // features converted at a time before they are scattered

template <typename L>
void store_elements(float* out, const float* x, std::int64_t count) {
    std::memcpy(out, x, static_cast<std::size_t>(count) * sizeof *x);
}

template <typename L>
void store_elements(std::uint16_t* out, const float* x, std::int64_t count) {
    each_lanes(count, [&](std::int64_t i, int lanes) {
        if (lanes == kLanes) return L::store_bf16(out + i, L::load(x + i));
        std::uint16_t tail[kLanes];
        L::store_bf16(tail, L::load_partial(x + i, lanes));
        std::memcpy(out + i, tail, static_cast<std::size_t>(lanes) * sizeof tail[0]);
    });
}

template <typename Element>
void scatter(const Element* x, std::int64_t count, std::int64_t stride, Element* out) {
    for (std::int64_t i = 0; i < count; ++i) out[i * stride] = x[i];
}

template <typename L, typename Element>
void write_float_kv(const KvLayer& layer, std::byte* keys, std::byte* values, std::int64_t offset, const float* key,
                    const float* value) {
    Element* const column = reinterpret_cast<Element*>(keys) + offset;
    for (std::int64_t first = 0; first < layer.head_dim; first += kWriteFeatures) {
        const std::int64_t left = layer.head_dim - first, count = left < kWriteFeatures ? left : kWriteFeatures;
        Element converted[kWriteFeatures];
        store_elements<L>(converted, key + first, count);
        scatter(converted, count, layer.block_size, column + first * layer.block_size);
    }
    store_elements<L>(reinterpret_cast<Element*>(values) + offset * layer.head_dim, value, layer.head_dim);
}

// The codes of the key are laid down 256 at a time; the grid is the whole head's.
template <typename L>
float write_int8_key(const KvLayer& layer, std::int8_t* column, const float* key) {
    const Int8Grid grid = int8_grid<L>(key, layer.head_dim);
    for (std::int64_t first = 0; first < layer.head_dim; first += kWriteFeatures) {
        const std::int64_t left = layer.head_dim - first, count = left < kWriteFeatures ? left : kWriteFeatures;
        std::int8_t codes[kWriteFeatures] = {};
        if (grid.inverse != 0.0f) write_codes<L>(key + first, count, grid.inverse, codes);
        scatter(codes, count, layer.block_size, column + first * layer.block_size);
    }
    return grid.scale;
}

template <typename L>
void write_int8_kv(const KvLayer& layer, std::int64_t block, std::int64_t offset, std::int64_t head, const float* key,
                   const float* value) {
    auto* const column = reinterpret_cast<std::int8_t*>(layer.keys(block, head)) + offset;
    auto* const row = reinterpret_cast<std::int8_t*>(layer.values(block, head)) + offset * layer.head_dim;
    std::int32_t sum = 0;
    layer.key_scales(block, head)[offset] = write_int8_key<L>(layer, column, key);
    layer.value_scales(block, head)[offset] = quantize_int8<L>(value, layer.head_dim, row, &sum);
}

template <typename L>
void write_kv(const KvLayer& layer, std::int64_t block, std::int64_t offset, std::int64_t head, const float* key,
              const float* value) {
    std::byte* const keys = layer.keys(block, head);
    std::byte* const values = layer.values(block, head);
    switch (layer.format) {
        case KvFormat::f32: return write_float_kv<L, float>(layer, keys, values, offset, key, value);
        case KvFormat::bf16: return write_float_kv<L, std::uint16_t>(layer, keys, values, offset, key, value);
        case KvFormat::int8: return write_int8_kv<L>(layer, block, offset, head, key, value);
    }
}

}  // namespace
}  // namespace octavo
