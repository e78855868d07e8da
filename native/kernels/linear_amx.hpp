// The linear layer with many rows by AMX: 16 rows times 16 outputs times a group of inputs in one instruction.
//
// A tile of the weight is unpacked once into a panel of signed bytes, code minus zero point, for all rows; so the
// product is the exact bracket of packed_weight.hpp, and only 8-bit codes with zero points, whose differences need nine
// bits, are corrected afterwards. What is left of a group are one conversion, one product and one fma for each row: as
// long as that runs behind the next groups' tiles (ping-pong over four of them), it hides their latency and they its.
#pragma once

#include <cstddef>
#include <cstring>

#include "kernels/amx_tiles.hpp"
#include "kernels/dot_avx512.hpp"
#include "kernels/linear_tile.hpp"
#include "kernels/row_blocks.hpp"

namespace octavo {
namespace {

// The rescale of a group follows the tiles of the group that is so many later.
constexpr std::int64_t kGroupsBehind = 2;

// Memory of a call, cut from its scratch.
struct AmxScratch {
    std::uint8_t* codes;        // [steps][64], signed
    float* scales;              // [groups][16]
    std::int32_t* corrections;  // [groups][16]
    std::int32_t* totals;       // [slots][16 rows][16 outputs]
    float output_scale;
    QuantizedRows last_rows;  // 16 rows: the last ones, and zeros
};

// Cuts memory into pieces that start on cache lines, and counts them.
class Cutter {
public:
    explicit Cutter(std::byte* memory) : start_(reinterpret_cast<std::uintptr_t>(memory)), next_(start_) {}
    template <typename T>
    T* take(std::int64_t count) {
        T* piece = reinterpret_cast<T*>(next_);
        next_ += static_cast<std::uintptr_t>(round_up(count * static_cast<std::int64_t>(sizeof(T)), 64));
        return piece;
    }
    std::size_t taken() const { return next_ - start_; }

private:
    std::uintptr_t start_, next_;
};

inline AmxScratch cut_scratch(Cutter& cutter, std::int64_t inputs, std::int64_t groups, std::int64_t group) {
    const std::int64_t padded = padded_inputs(inputs);
    AmxScratch scratch{};
    scratch.codes = cutter.take<std::uint8_t>(padded * kTileOutputs);
    scratch.scales = cutter.take<float>(groups * kTileOutputs);
    scratch.corrections = cutter.take<std::int32_t>(groups * kTileOutputs);
    scratch.totals = cutter.take<std::int32_t>(kAmxSlots * kAmxRows * kTileOutputs);
    scratch.last_rows.codes = cutter.take<std::int8_t>(kAmxRows * padded);
    scratch.last_rows.scales = cutter.take<float>(kAmxRows * groups);
    scratch.last_rows.sums = cutter.take<std::int32_t>(kAmxRows * groups);
    scratch.last_rows.padded = padded;
    scratch.last_rows.groups = groups;
    scratch.last_rows.group = group;
    return scratch;
}

// Rows are read 16 at a time: the last ones are copied to where zeros follow them.
inline void copy_last_rows(const QuantizedRows& x, std::int64_t num_rows, const QuantizedRows& out) {
    const auto copy = [&](auto* to, const auto* from, std::int64_t row_elements) {
        const std::size_t bytes = static_cast<std::size_t>(row_elements) * sizeof *to;
        std::memcpy(to, from, bytes * static_cast<std::size_t>(num_rows));
        std::memset(to + num_rows * row_elements, 0, bytes * static_cast<std::size_t>(kAmxRows - num_rows));
    };
    copy(out.codes, x.codes, x.padded);
    copy(out.scales, x.scales, x.groups);
    copy(out.sums, x.sums, x.groups);
}

// Steps [first, end) of an octet, minus `middle`, as bytes.
template <int bits, int first, int end>
inline void unpack_steps(const std::uint8_t* octet, __m512i middle, std::uint8_t* out) {
    if constexpr (first < end) {
        const __m512i codes = DotAvx512::step<bits, first>(octet);
        DotAvx512::store_step(out + kStepBytes * first, _mm512_sub_epi8(codes, middle));
        unpack_steps<bits, first + 1, end>(octet, middle, out);
    }
}

template <int bits>
inline void unpack_quads(const std::uint8_t* codes, std::int64_t first, std::int64_t end, __m512i middle,
                         std::uint8_t* out) {
    for (std::int64_t quad = first; quad < end; ++quad) {
        const std::uint8_t* octet = codes + quad / 2 * octet_bytes(bits);
        std::uint8_t* octet_out = out + quad / 2 * octet_bytes(8);
        if (quad % 2 == 0) unpack_steps<bits, 0, 4>(octet, middle, octet_out);
        if (quad % 2 == 1) unpack_steps<bits, 4, 8>(octet, middle, octet_out);
    }
}

// What is subtracted from the codes of a scale group: each output's zero point in its four bytes.
template <int bits>
inline __m512i middle_of(const StoredTile<DotAvx512>& tile, std::int64_t scale_group) {
    if (bits == 8 || !tile.has_zeros()) return _mm512_set1_epi8(static_cast<char>(middle_code(bits)));
    return _mm512_mullo_epi32(tile.zeros(scale_group), _mm512_set1_epi32(0x01010101));
}

template <int bits>
inline void unpack_tile(const StoredTile<DotAvx512>& tile, GroupRange range, const AmxScratch& out) {
    for (std::int64_t group = range.first; group < range.end; ++group) {
        const std::int64_t scale_group = group / range.per_scale;
        const GroupRange one = range.part(group, group + 1);
        const __m512i middle = middle_of<bits>(tile, scale_group);
        unpack_quads<bits>(tile.codes, one.first_quad(), one.end_quad(), middle, out.codes);
        _mm512_storeu_ps(out.scales + group * kTileOutputs, tile.scales(scale_group));
        if (bits == 8 && tile.has_zeros()) {
            const __m512i correction = _mm512_sub_epi32(_mm512_set1_epi32(128), tile.zeros(scale_group));
            _mm512_storeu_si512(out.corrections + group * kTileOutputs, correction);
        }
    }
}

using AmxSums = __m512[kAmxRows];

// sums = fma(float(totals), w_scale * x_scale, sums), for 16 rows.
template <bool corrected>
[[gnu::always_inline]] inline void rescale(const std::int32_t* totals, const AmxScratch& panel, const QuantizedRows& x,
                                           std::int64_t group, AmxSums& sums) {
    const __m512 w_scale = _mm512_loadu_ps(panel.scales + group * kTileOutputs);
#pragma GCC unroll 16
    for (int row = 0; row < kAmxRows; ++row) {
        __m512i total = _mm512_loadu_si512(totals + row * kTileOutputs);
        if constexpr (corrected) {
            const __m512i correction = _mm512_loadu_si512(panel.corrections + group * kTileOutputs);
            const __m512i sum = _mm512_set1_epi32(x.sums[row * x.groups + group]);
            total = _mm512_add_epi32(total, _mm512_mullo_epi32(correction, sum));
        }
        const __m512 scale = _mm512_mul_ps(w_scale, _mm512_set1_ps(x.scales[row * x.groups + group]));
        sums[row] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(total), scale, sums[row]);
    }
}

inline std::int32_t* totals_of(const AmxScratch& panel, std::int64_t slot) {
    return panel.totals + slot * kAmxRows * kTileOutputs;
}

[[gnu::always_inline]] inline void start_group(const AmxScratch& panel, const QuantizedRows& x, GroupRange range,
                                               std::int64_t quads, std::int64_t group) {
    const std::int64_t first = group * range.quads, end = range.part(group, group + 1).end_quad();
    const std::int64_t slot = group % kAmxSlots;
    std::int32_t* totals = totals_of(panel, slot);
    switch (slot) {
        case 0:
            return multiply_group<0>(x.codes, x.padded, panel.codes, first, end, quads, totals);
        case 1:
            return multiply_group<1>(x.codes, x.padded, panel.codes, first, end, quads, totals);
        case 2:
            return multiply_group<2>(x.codes, x.padded, panel.codes, first, end, quads, totals);
        default:
            return multiply_group<3>(x.codes, x.padded, panel.codes, first, end, quads, totals);
    }
}

[[gnu::always_inline]] inline void clear_sums(AmxSums& sums) {
#pragma GCC unroll 16
    for (int row = 0; row < kAmxRows; ++row) sums[row] = _mm512_setzero_ps();
}

[[gnu::always_inline]] inline void store_sums(const AmxSums& sums, std::int64_t num_rows, float scale, int outputs,
                                              Rows y) {
#pragma GCC unroll 16
    for (int row = 0; row < kAmxRows; ++row) {
        if (row < num_rows) store_scaled<Avx512>(y.row(row), sums[row], scale, outputs);
    }
}

// 16 rows of x against the panel; the first `num_rows` are written.
template <bool corrected>
inline void multiply_rows(const AmxScratch& panel, const QuantizedRows& x, GroupRange range, std::int64_t quads,
                          std::int64_t num_rows, int outputs, Rows y) {
    AmxSums sums;
    clear_sums(sums);
    for (std::int64_t group = 0; group < range.end + kGroupsBehind; ++group) {
        if (group < range.end) start_group(panel, x, range, quads, group);
        if (group < kGroupsBehind) continue;
        const std::int64_t done = group - kGroupsBehind;
        rescale<corrected>(totals_of(panel, done % kAmxSlots), panel, x, done, sums);
    }
    store_sums(sums, num_rows, panel.output_scale, outputs, y);
}

// The same where a row is one group: there is nothing to rescale meanwhile, so blocks of rows take turns instead, and
// share each tile of the weight. The last block writes its first `num_last` rows.
template <bool corrected, int blocks>
inline void multiply_row_blocks(const AmxScratch& panel, const QuantizedRows& x, GroupRange range,
                                std::int64_t num_last, int outputs, Rows y) {
    multiply_whole_rows<blocks>(x.codes, x.padded, panel.codes, range.num_quads, 4, panel.totals);
    for (int block = 0; block < blocks; ++block) {
        AmxSums sums;
        clear_sums(sums);
        rescale<corrected>(totals_of(panel, block), panel, x.from(block * kAmxRows), 0, sums);
        store_sums(sums, block + 1 < blocks ? kAmxRows : num_last, panel.output_scale, outputs,
                   y.from(block * kAmxRows));
    }
}

// `num_rows` rows of x against the panel. All 16 rows of the last block are read.
template <bool corrected>
inline void multiply_all_rows(const AmxScratch& panel, const QuantizedRows& x, GroupRange range, std::int64_t quads,
                              std::int64_t num_rows, int outputs, Rows y) {
    const std::int64_t num_blocks = (num_rows + kAmxRows - 1) / kAmxRows;
    const auto rows_of_last = [&](std::int64_t first) { return lesser(num_rows - first, kAmxRows); };
    if (range.end > 1) {
        for (std::int64_t row = 0; row < num_rows; row += kAmxRows) {
            multiply_rows<corrected>(panel, x.from(row), range, quads, rows_of_last(row), outputs, y.from(row));
        }
        return;
    }
    for_row_blocks<kAmxSlots>(num_blocks, [&]<int blocks>(std::int64_t block) {
        const std::int64_t row = block * kAmxRows, last = row + (blocks - 1) * kAmxRows;
        multiply_row_blocks<corrected, blocks>(panel, x.from(row), range, rows_of_last(last), outputs, y.from(row));
    });
}

// The quads that one product takes. A group is one quad, two, or a multiple of four.
inline std::int64_t quads_per_product(std::int64_t quads_per_group) { return lesser(quads_per_group, 4); }

template <int bits>
void rows_of_bits_amx(const PackedWeight& weight, const QuantizedRows& x, std::int64_t num_rows,
                      std::int64_t first_tile, std::int64_t end_tile, Rows y, const AmxScratch& panel) {
    const GroupRange range = whole_range(weight);
    const std::int64_t quads = quads_per_product(range.quads), whole_rows = num_rows / kAmxRows * kAmxRows;
    const bool corrected = bits == 8 && weight.zeros != nullptr;
    const auto multiply = corrected ? multiply_all_rows<true> : multiply_all_rows<false>;
    const TileSession session(quads);
    if (whole_rows < num_rows) copy_last_rows(x.from(whole_rows), num_rows - whole_rows, panel.last_rows);
    for (std::int64_t tile = first_tile; tile < end_tile; ++tile) {
        const int outputs = tile_outputs(weight.outputs, tile);
        const Rows y_tile = y.from(0, (tile - first_tile) * kTileOutputs);
        unpack_tile<bits>(StoredTile<DotAvx512>(weight, tile), range, panel);
        finish_writes();
        multiply(panel, x, range, quads, whole_rows, outputs, y_tile);
        if (whole_rows == num_rows) continue;
        multiply(panel, panel.last_rows, range, quads, num_rows - whole_rows, outputs, y_tile.from(whole_rows));
    }
}

inline void many_rows_amx(const PackedWeight& weight, const QuantizedRows& x, std::int64_t num_rows,
                          std::int64_t first_tile, std::int64_t end_tile, Rows y, std::byte* scratch) {
    Cutter cutter(scratch);
    AmxScratch panel = cut_scratch(cutter, weight.inputs, weight.groups, weight.group);
    panel.output_scale = weight.output_scale;
    if (weight.bits == 8) return rows_of_bits_amx<8>(weight, x, num_rows, first_tile, end_tile, y, panel);
    if (weight.bits == kFp4) return rows_of_bits_amx<kFp4>(weight, x, num_rows, first_tile, end_tile, y, panel);
    if (weight.bits == 4) return rows_of_bits_amx<4>(weight, x, num_rows, first_tile, end_tile, y, panel);
    if (weight.bits == 3) return rows_of_bits_amx<3>(weight, x, num_rows, first_tile, end_tile, y, panel);
    rows_of_bits_amx<2>(weight, x, num_rows, first_tile, end_tile, y, panel);
}

// Bytes of scratch for weights of up to `most_inputs` inputs, at the smallest group.
inline std::size_t amx_scratch_bytes(std::int64_t most_inputs) {
    Cutter cutter(nullptr);
    const std::int64_t padded = padded_inputs(most_inputs);
    cut_scratch(cutter, padded, padded / kQuadInputs, kQuadInputs);
    return cutter.taken();
}

}  // namespace
}  // namespace octavo
