// AMX tiles as arrays, after the operation sections of Intel's SDM (volume 2, TILELOADD, TDPBUSD ...), and the same
// refusals: what the processor would answer with a fault ends the program with a message.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace emulated {

constexpr int kTiles = 8, kMostRows = 16, kMostRowBytes = 64;

struct Tile {
    int rows = 0, row_bytes = 0;
    alignas(64) std::uint8_t bytes[kMostRows][kMostRowBytes] = {};
};

struct TileFile {
    bool configured = false;
    Tile tile[kTiles];
};
inline thread_local TileFile tile_file;

inline void fault_unless(bool fine, const char* what) {
    if (fine) return;
    std::fprintf(stderr, "emulated AMX fault: %s\n", what);
    std::abort();
}

inline Tile& tile(int index) {
    fault_unless(tile_file.configured, "no tile configuration on this thread");
    fault_unless(tile_file.tile[index].rows > 0, "a tile that the configuration leaves out");
    return tile_file.tile[index];
}

// 64 bytes: palette, start row, 14 reserved, 16 x uint16 bytes a row, 16 x uint8 rows.
inline void load_config(const void* memory) {
    std::uint8_t config[64];
    std::memcpy(config, memory, sizeof config);
    fault_unless(config[0] == 1, "palette 1 is the only one there is");
    for (int i = 1; i < 16; ++i) fault_unless(config[i] == 0, "reserved bytes of the configuration must be zero");
    tile_file = {};
    tile_file.configured = true;
    for (int i = 0; i < 16; ++i) {
        const int row_bytes = config[16 + 2 * i] | config[17 + 2 * i] << 8, rows = config[48 + i];
        fault_unless(i < kTiles || (row_bytes == 0 && rows == 0), "there are eight tiles");
        fault_unless(rows <= kMostRows && row_bytes <= kMostRowBytes && row_bytes % 4 == 0, "tile too large");
        fault_unless((rows == 0) == (row_bytes == 0), "rows without bytes or bytes without rows");
        if (i < kTiles) tile_file.tile[i].rows = rows, tile_file.tile[i].row_bytes = row_bytes;
    }
}

// Rows and bytes beyond the configured ones become zero.
inline void zero(int index) { std::memset(tile(index).bytes, 0, sizeof tile(index).bytes); }

inline void load(int index, const void* base, std::ptrdiff_t stride) {
    zero(index);
    Tile& t = tile(index);
    for (int r = 0; r < t.rows; ++r) std::memcpy(t.bytes[r], static_cast<const char*>(base) + r * stride, t.row_bytes);
}

inline void store(int index, void* base, std::ptrdiff_t stride) {
    const Tile& t = tile(index);
    for (int r = 0; r < t.rows; ++r) std::memcpy(static_cast<char*>(base) + r * stride, t.bytes[r], t.row_bytes);
}

// c[m][n] += sum over k and 4 bytes of a[m][4 k + i] * b[k][4 n + i]
template <typename A, typename B>
void multiply(int c_index, int a_index, int b_index) {
    Tile& c = tile(c_index);
    const Tile &a = tile(a_index), &b = tile(b_index);
    fault_unless(c_index != a_index && c_index != b_index && a_index != b_index, "the three tiles must differ");
    fault_unless(c.rows == a.rows && c.row_bytes == b.row_bytes && a.row_bytes == 4 * b.rows, "shapes do not agree");
    for (int m = 0; m < c.rows; ++m) {
        for (int n = 0; n < c.row_bytes / 4; ++n) {
            std::int32_t sum;
            std::memcpy(&sum, &c.bytes[m][4 * n], 4);
            for (int k = 0; k < b.rows; ++k) {
                for (int i = 0; i < 4; ++i) {
                    sum += static_cast<A>(a.bytes[m][4 * k + i]) * static_cast<B>(b.bytes[k][4 * n + i]);
                }
            }
            std::memcpy(&c.bytes[m][4 * n], &sum, 4);
        }
    }
}

}  // namespace emulated

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbssd
#undef _tile_dpbsud
#undef _tile_dpbusd
#undef _tile_dpbuud
#define _tile_loadconfig(memory) emulated::load_config(memory)
#define _tile_release() (void)(emulated::tile_file = {})
#define _tile_loadd(tile, base, stride) emulated::load(tile, base, stride)
#define _tile_stored(tile, base, stride) emulated::store(tile, base, stride)
#define _tile_zero(tile) emulated::zero(tile)
#define _tile_dpbssd(c, a, b) (emulated::multiply<std::int8_t, std::int8_t>(c, a, b))
#define _tile_dpbsud(c, a, b) (emulated::multiply<std::int8_t, std::uint8_t>(c, a, b))
#define _tile_dpbusd(c, a, b) (emulated::multiply<std::uint8_t, std::int8_t>(c, a, b))
#define _tile_dpbuud(c, a, b) (emulated::multiply<std::uint8_t, std::uint8_t>(c, a, b))
