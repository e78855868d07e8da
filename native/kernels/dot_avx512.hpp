// Integer dot products with AVX-512 VNNI: vpdpbusd multiplies 64 unsigned codes by signed activations and adds each
// output's four products to its int32 lane, without saturation. One step is one register and one instruction a row.
//
// Needs AVX512F, AVX512BW and AVX512_VNNI. A processor with AVX-512 but without VNNI uses the AVX2 unit: what AVX-512BW
// adds to vpmaddubsw is not worth a third path.
#pragma once

#include <immintrin.h>

#include "kernels/linear_layout.hpp"
#include "lanes/avx512.hpp"

namespace octavo {
namespace {

struct DotAvx512 {
    using Lanes = Avx512;
    using Totals = Avx512::I;
    using Step = __m512i;

    static constexpr int centre(int) { return 0; }

    template <int bits, int index>
    static Step step(const std::uint8_t* octet) {
        if constexpr (bits == kFp4) {
            const Step nibbles = step<4, index>(octet);
            return _mm512_shuffle_epi8(fp4_table(), nibbles);
        }
        const __m512i plane = _mm512_loadu_si512(octet + low_plane(bits, index));
        if constexpr (bits == 8) return plane;
        const __m512i mask = _mm512_set1_epi8(static_cast<char>(low_mask(bits)));
        const __m512i low = _mm512_and_si512(shifted_down<low_shift(bits, index)>(plane), mask);
        if constexpr (bits != 3) return low;
        const __m512i third = shifted_down<index - 2>(_mm512_loadu_si512(octet + kHighPlane));
        return _mm512_or_si512(low, _mm512_and_si512(third, _mm512_set1_epi8(4)));
    }
    static void store_step(std::uint8_t* p, Step step) { _mm512_storeu_si512(p, step); }
    static Totals load_zeros(const std::uint8_t* zeros) {
        return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(zeros)));
    }

    template <int stored, int code_bits, int first, int end, int rows>
    [[gnu::always_inline]] static void dot(const std::uint8_t* octet, const std::int8_t* x, std::int64_t x_stride,
                                           Totals (&totals)[rows]) {
        if constexpr (first < end) {
            const Step codes = step<stored, first>(octet);
            for (int row = 0; row < rows; ++row) {
                const __m512i xs = four(x + row * x_stride + kStepInputs * first);
                totals[row] = _mm512_dpbusd_epi32(totals[row], codes, xs);
            }
            dot<stored, code_bits, first + 1, end>(octet, x, x_stride, totals);
        }
    }

private:
    static __m512i fp4_table() {
        return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kFp4Codes)));
    }
    // Bits that cross into a neighbouring byte are masked away afterwards.
    template <int shift>
    static __m512i shifted_down(__m512i v) {
        if constexpr (shift > 0) return _mm512_srli_epi16(v, shift);
        if constexpr (shift < 0) return _mm512_slli_epi16(v, -shift);
        return v;
    }
    // Four activations of one row in every lane.
    static __m512i four(const std::int8_t* x) {
        std::int32_t bytes;
        __builtin_memcpy(&bytes, x, sizeof bytes);
        return _mm512_set1_epi32(bytes);
    }
};

}  // namespace
}  // namespace octavo
