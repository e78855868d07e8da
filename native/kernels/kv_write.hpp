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
void write_float_key(const KvLayer& layer, Element* column, const float* key) {
    for (std::int64_t first = 0; first < layer.head_dim; first += kWriteFeatures) {
        const std::int64_t left = layer.head_dim - first, count = left < kWriteFeatures ? left : kWriteFeatures;
        Element converted[kWriteFeatures];
        store_elements<L>(converted, key + first, count);
        scatter(converted, count, layer.block_size, column + first * layer.block_size);
    }
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
void write_key(const KvLayer& layer, std::int64_t block, std::int64_t offset, std::int64_t head, const float* key) {
    std::byte* const keys = layer.keys(block, head);
    switch (layer.format) {
        case KvFormat::f32:
            return write_float_key<L>(layer, reinterpret_cast<float*>(keys) + offset, key);
        case KvFormat::bf16:
            return write_float_key<L>(layer, reinterpret_cast<std::uint16_t*>(keys) + offset, key);
        case KvFormat::int8:
            layer.key_scales(block, head)[offset] =
                write_int8_key<L>(layer, reinterpret_cast<std::int8_t*>(keys) + offset, key);
    }
}

template <typename L>
void write_value(const KvLayer& layer, std::int64_t block, std::int64_t offset, std::int64_t head, const float* value) {
    std::byte* const values = layer.values(block, head);
    const std::int64_t at = offset * layer.head_dim;
    std::int32_t sum = 0;
    switch (layer.format) {
        case KvFormat::f32:
            return store_elements<L>(reinterpret_cast<float*>(values) + at, value, layer.head_dim);
        case KvFormat::bf16:
            return store_elements<L>(reinterpret_cast<std::uint16_t*>(values) + at, value, layer.head_dim);
        case KvFormat::int8:
            layer.value_scales(block, head)[offset] =
                quantize_int8<L>(value, layer.head_dim, reinterpret_cast<std::int8_t*>(values) + at, &sum);
    }
}

template <typename L>
void write_kv(const KvLayer& layer, std::int64_t block, std::int64_t offset, std::int64_t head, const float* key,
              const float* value) {
    if (key) write_key<L>(layer, block, offset, head, key);
    if (value) write_value<L>(layer, block, offset, head, value);
}

}  // namespace
}  // namespace octavo
