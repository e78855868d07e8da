// Integer dot products with AVX2: vpmaddubsw multiplies unsigned by signed bytes and adds pairs into int16.
//
// Codes of up to 4 bits: a step adds at most 2 * 15 * 127 to an int16 lane, so 8 steps (an octet) fit and only then are
// lanes widened to int32; FP4's of 5 bits, up to 24, fit four steps. Codes of 8 bits could saturate (2 * 255 * 127), so they are centred first and the sign moves
// to the activation: |code - 128| <= 128 times at most 127, twice, is 32,512.
#pragma once

#include <immintrin.h>

#include "kernels/linear_layout.hpp"
#include "lanes/avx2.hpp"

namespace octavo {
namespace {

struct DotAvx2 {
    using Lanes = Avx2;
    using Totals = Avx2::I;

    // 64 codes: outputs 0-7 and 8-15, four inputs each.
    struct Step {
        __m256i low, high;
    };

    // What dot() subtracts from every code.
    static constexpr int centre(int code_bits) { return code_bits == 8 ? 128 : 0; }

    template <int bits, int index>
    static Step step(const std::uint8_t* octet) {
        return {half_step<bits, index>(octet), half_step<bits, index>(octet + 32)};
    }
    static void store_step(std::uint8_t* p, Step step) {
        _mm256_store_si256(reinterpret_cast<__m256i*>(p), step.low);
        _mm256_store_si256(reinterpret_cast<__m256i*>(p + 32), step.high);
    }
    static Totals load_zeros(const std::uint8_t* zeros) {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(zeros));
        return {_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))};
    }

    // Steps [first, end) of one octet, stored with `stored` bits a code that are below 2^code_bits: adds
    // sum((code - centre) * x) of each row's inputs to totals. `x` is the octet's first input in the first row.
    template <int stored, int code_bits, int first, int end, int rows>
    [[gnu::always_inline]] static void dot(const std::uint8_t* octet, const std::int8_t* x, std::int64_t x_stride,
                                           Totals (&totals)[rows]) {
        if constexpr (code_bits == 8) {
            add_wide<stored, first, end>(octet, x, x_stride, totals);
        } else {
            constexpr int fitting = code_bits == kFp4 && end - first > 4 ? first + 4 : end;
            Step sums[rows] = {};
            add_narrow<stored, first, fitting>(octet, x, x_stride, sums);
            for (int row = 0; row < rows; ++row) {
                totals[row].low = _mm256_add_epi32(totals[row].low, widen(sums[row].low));
                totals[row].high = _mm256_add_epi32(totals[row].high, widen(sums[row].high));
            }
            if constexpr (fitting < end) dot<stored, code_bits, fitting, end>(octet, x, x_stride, totals);
        }
    }

private:
    static __m256i load(const std::uint8_t* p) { return _mm256_load_si256(reinterpret_cast<const __m256i*>(p)); }

    template <int shift>
    static __m256i shifted_down(__m256i v) {
        if constexpr (shift > 0) return _mm256_srli_epi16(v, shift);
        if constexpr (shift < 0) return _mm256_slli_epi16(v, -shift);
        return v;
    }

    template <int bits, int index>
    static __m256i half_step(const std::uint8_t* octet) {
        if constexpr (bits == kFp4) return _mm256_shuffle_epi8(fp4_table(), half_step<4, index>(octet));
        const __m256i plane = load(octet + low_plane(bits, index));
        if constexpr (bits == 8) return plane;
        const __m256i mask = _mm256_set1_epi8(static_cast<char>(low_mask(bits)));
        const __m256i low = _mm256_and_si256(shifted_down<low_shift(bits, index)>(plane), mask);
        if constexpr (bits != 3) return low;
        const __m256i third = shifted_down<index - 2>(load(octet + kHighPlane));
        return _mm256_or_si256(low, _mm256_and_si256(third, _mm256_set1_epi8(4)));
    }

    static __m256i fp4_table() {
        return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kFp4Codes)));
    }

    // Four activations of one row in every lane.
    static __m256i four(const std::int8_t* x) {
        std::int32_t bytes;
        __builtin_memcpy(&bytes, x, sizeof bytes);
        return _mm256_set1_epi32(bytes);
    }
    static __m256i widen(__m256i pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }

    template <int stored, int index, int end, int rows>
    [[gnu::always_inline]] static void add_narrow(const std::uint8_t* octet, const std::int8_t* x,
                                                  std::int64_t x_stride, Step (&sums)[rows]) {
        if constexpr (index < end) {
            const Step codes = step<stored, index>(octet);
            for (int row = 0; row < rows; ++row) {
                const __m256i xs = four(x + row * x_stride + kStepInputs * index);
                sums[row].low = _mm256_add_epi16(sums[row].low, _mm256_maddubs_epi16(codes.low, xs));
                sums[row].high = _mm256_add_epi16(sums[row].high, _mm256_maddubs_epi16(codes.high, xs));
            }
            add_narrow<stored, index + 1, end>(octet, x, x_stride, sums);
        }
    }

    static __m256i signed_products(__m256i centred, __m256i magnitude, __m256i xs) {
        return widen(_mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(xs, centred)));
    }

    template <int stored, int index, int end, int rows>
    [[gnu::always_inline]] static void add_wide(const std::uint8_t* octet, const std::int8_t* x, std::int64_t x_stride,
                                                Totals (&totals)[rows]) {
        if constexpr (index < end) {
            const Step codes = step<stored, index>(octet);
            const __m256i centre = _mm256_set1_epi8(-128);
            const __m256i low = _mm256_xor_si256(codes.low, centre), high = _mm256_xor_si256(codes.high, centre);
            const __m256i low_size = _mm256_abs_epi8(low), high_size = _mm256_abs_epi8(high);
            for (int row = 0; row < rows; ++row) {
                const __m256i xs = four(x + row * x_stride + kStepInputs * index);
                totals[row].low = _mm256_add_epi32(totals[row].low, signed_products(low, low_size, xs));
                totals[row].high = _mm256_add_epi32(totals[row].high, signed_products(high, high_size, xs));
            }
            add_wide<stored, index + 1, end>(octet, x, x_stride, totals);
        }
    }
};

}  // namespace
}  // namespace octavo
