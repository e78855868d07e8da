// AMX tile registers: their configuration, and integer products of a linear.
//
//     tiles 0-3   C   int32 [16 rows][16 outputs]            one a group in turn, or one a block of rows
//     tiles 4, 5  A   int8  [16 rows][inputs of a product]   activations
//     tiles 6, 7  B   int8  [steps][16 outputs x 4 inputs]   centred codes: a step of the layout is a row of the tile
//
// A product takes 64 inputs, or a group if that is smaller. Tile numbers are part of the instruction, and gcc makes them
// from the text of the argument, so they are literals.
#pragma once

#include <immintrin.h>

#include <atomic>
#include <cstdint>
#include <utility>

#include "kernels/linear_layout.hpp"

namespace octavo {
namespace {

constexpr int kAmxRows = 16;
constexpr int kAmxSlots = 4;  // C tiles

// What LDTILECFG reads (Intel SDM volume 1, chapter 18).
struct alignas(64) TileConfig {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {};
    std::uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

// gcc 12 believes that _tile_loadconfig reads 8 bytes and _tile_loadd none: what they read must be written before.
inline void finish_writes() { std::atomic_signal_fence(std::memory_order_seq_cst); }

// Tiles of this thread, for products of `quads` times 16 inputs, until the end of the scope. Released at once, because
// a thread with tiles in use costs the system 8 KiB at every switch.
class TileSession {
public:
    explicit TileSession(std::int64_t quads) {
        TileConfig config;
        for (int tile = 0; tile < 8; ++tile) {
            const bool is_a = tile == 4 || tile == 5, is_b = tile >= 6;
            config.rows[tile] = static_cast<std::uint8_t>(is_b ? 4 * quads : kAmxRows);
            config.row_bytes[tile] = static_cast<std::uint16_t>(is_a ? kQuadInputs * quads : 64);
        }
        finish_writes();
        _tile_loadconfig(&config);
    }
    ~TileSession() { _tile_release(); }
    TileSession(const TileSession&) = delete;
    TileSession& operator=(const TileSession&) = delete;
};

template <int slot>
inline void clear_totals() {
    if constexpr (slot == 0) _tile_zero(0);
    if constexpr (slot == 1) _tile_zero(1);
    if constexpr (slot == 2) _tile_zero(2);
    if constexpr (slot == 3) _tile_zero(3);
}

template <int slot>
inline void store_totals(std::int32_t* totals) {
    if constexpr (slot == 0) _tile_stored(0, totals, 64);
    if constexpr (slot == 1) _tile_stored(1, totals, 64);
    if constexpr (slot == 2) _tile_stored(2, totals, 64);
    if constexpr (slot == 3) _tile_stored(3, totals, 64);
}

// C += A B. Slots use the A and B tiles in turn, so that loading one does not wait for the product before.
template <int slot>
inline void multiply(const std::int8_t* x, std::int64_t x_stride, const std::uint8_t* codes) {
    if constexpr (slot % 2 == 0) {
        _tile_loadd(4, x, x_stride);
        _tile_loadd(6, codes, 64);
    } else {
        _tile_loadd(5, x, x_stride);
        _tile_loadd(7, codes, 64);
    }
    if constexpr (slot == 0) _tile_dpbssd(0, 4, 6);
    if constexpr (slot == 1) _tile_dpbssd(1, 5, 7);
    if constexpr (slot == 2) _tile_dpbssd(2, 4, 6);
    if constexpr (slot == 3) _tile_dpbssd(3, 5, 7);
}

// totals [16 rows][16 outputs] = sum over quads [first, end), `quads` at a time. `x` and `codes` begin with quad 0.
template <int slot>
inline void multiply_group(const std::int8_t* x, std::int64_t x_stride, const std::uint8_t* codes, std::int64_t first,
                           std::int64_t end, std::int64_t quads, std::int32_t* totals) {
    clear_totals<slot>();
    for (std::int64_t quad = first; quad < end; quad += quads) {
        multiply<slot>(x + quad * kQuadInputs, x_stride, codes + quad * 4 * kStepBytes);
    }
    store_totals<slot>(totals);
}

// C += A B for a B that is in tile 6 already.
template <int slot>
inline void multiply_shared(const std::int8_t* x, std::int64_t x_stride) {
    if constexpr (slot % 2 == 0) _tile_loadd(4, x, x_stride);
    if constexpr (slot % 2 == 1) _tile_loadd(5, x, x_stride);
    if constexpr (slot == 0) _tile_dpbssd(0, 4, 6);
    if constexpr (slot == 1) _tile_dpbssd(1, 5, 6);
    if constexpr (slot == 2) _tile_dpbssd(2, 4, 6);
    if constexpr (slot == 3) _tile_dpbssd(3, 5, 6);
}

// totals [blocks][16 rows][16 outputs] = sums over all `num_quads` quads, for `blocks` times 16 rows.
template <int blocks>
inline void multiply_whole_rows(const std::int8_t* x, std::int64_t x_stride, const std::uint8_t* codes,
                                std::int64_t num_quads, std::int64_t quads, std::int32_t* totals) {
    const auto each_block = [](const auto& function) {
        [&]<int... slot>(std::integer_sequence<int, slot...>) {
            (function(std::integral_constant<int, slot>{}), ...);
        }(std::make_integer_sequence<int, blocks>{});
    };
    each_block([](auto slot) { clear_totals<slot>(); });
    for (std::int64_t quad = 0; quad < num_quads; quad += quads) {
        _tile_loadd(6, codes + quad * 4 * kStepBytes, 64);
        each_block(
            [&](auto slot) { multiply_shared<slot>(x + slot * kAmxRows * x_stride + quad * kQuadInputs, x_stride); });
    }
    each_block([&](auto slot) { store_totals<slot>(totals + slot * kAmxRows * kTileOutputs); });
}

}  // namespace
}  // namespace octavo
