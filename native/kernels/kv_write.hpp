// Storing one token's key and value of one head. Keys are transposed on the way in (see kv_layer.hpp): a token is written
// once and read at every later step.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/kv_layer.hpp"
#include "kernels/quantize_row.hpp"
#include "kernels/round_row.hpp"

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

// `count` codes of FP8. What is not finite is stored as the largest, as FP8 has no infinity that is told apart.
template <typename L, typename Format>
void store_fp8(std::uint8_t* out, const float* x, std::int64_t count, float scale) {
    const typename L::F divisor = L::set(scale);
    each_lanes(count, [&](std::int64_t i, int lanes) {
        float rounded[kLanes];
        L::store(rounded, round_to<L, Format>(L::div(load_lanes<L>(x + i, lanes), divisor)));
        for (int lane = 0; lane < lanes; ++lane) out[i + lane] = fp8_code<Format>(rounded[lane]);
    });
}

// `count` elements with a scale that is known before.
template <typename L>
void store_scaled_elements(KvFormat format, std::byte* out, const float* x, std::int64_t count, float scale) {
    auto* const bytes = reinterpret_cast<std::uint8_t*>(out);
    if (format == KvFormat::e4m3) return store_fp8<L, E4m3>(bytes, x, count, scale);
    if (format == KvFormat::e5m2) return store_fp8<L, E5m2>(bytes, x, count, scale);
    write_clamped_codes<L>(x, count, scale, reinterpret_cast<std::int8_t*>(out));
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
void write_scaled_key(const KvLayer& layer, std::byte* column, const float* key, float scale) {
    for (std::int64_t first = 0; first < layer.head_dim; first += kWriteFeatures) {
        const std::int64_t left = layer.head_dim - first, count = left < kWriteFeatures ? left : kWriteFeatures;
        std::byte codes[kWriteFeatures];
        store_scaled_elements<L>(layer.format, codes, key + first, count, scale);
        scatter(codes, count, layer.block_size, column + first * layer.block_size);
    }
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
            return;
        default:
            return write_scaled_key<L>(layer, keys + offset, key, layer.key_scale(head));
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
            return;
        default:
            return store_scaled_elements<L>(layer.format, values + at, value, layer.head_dim, layer.value_scale(head));
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
