// Lanes as one AVX-512 register. Needs AVX512F only (which includes AVX2, FMA and F16C).
#pragma once

#include <immintrin.h>

#include "lanes/lanes.hpp"

namespace octavo {
namespace {

struct Avx512 {
    using F = __m512;
    using I = __m512i;
    static constexpr int kBlockAccumulators = 24;  // of 32 registers (see kernels/attention_block.hpp)

    static F zero() { return _mm512_setzero_ps(); }
    static F set(float x) { return _mm512_set1_ps(x); }
    static F load(const float* p) { return _mm512_loadu_ps(p); }
    static F load_partial(const float* p, int n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
    static void store(float* p, F v) { _mm512_storeu_ps(p, v); }
    static void store_partial(float* p, F v, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), v); }
    static F add(F a, F b) { return _mm512_add_ps(a, b); }
    static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
    static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
    static F div(F a, F b) { return _mm512_div_ps(a, b); }
    static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
    static F max(F a, F b) { return _mm512_max_ps(a, b); }
    static F min(F a, F b) { return _mm512_min_ps(a, b); }
    static F sqrt(F v) { return _mm512_sqrt_ps(v); }
    static F exponent_part(F v) {
        return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7f800000)));
    }
    static F where_at_least(F x, F low, F v) { return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, low, _CMP_GE_OQ), v); }
    static float sum(F v) {
        const __m256 eight = _mm256_add_ps(low_half(v), high_half(v));
        const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
    }
    static float largest(F v) {
        const __m256 eight = _mm256_max_ps(low_half(v), high_half(v));
        const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
    }

    static F load_bf16(const std::uint16_t* p) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_16_words(p)), 16));
    }
    static F load_f16(const std::uint16_t* p) { return _mm512_cvtph_ps(load_16_words(p)); }
    static F load_i8(const std::int8_t* p) {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
    }
    // A byte's sign lands in the two highest bits of its half; the lower of them belongs to the exponent.
    static F load_e4m3(const std::uint8_t* p) {
        const __m256i words = _mm256_slli_epi16(_mm256_cvtepi8_epi16(load_16_bytes(p)), 7);
        return _mm512_cvtph_ps(_mm256_and_si256(words, _mm256_set1_epi16(static_cast<short>(0xbfff))));
    }
    static F load_e5m2(const std::uint8_t* p) {
        return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(load_16_bytes(p)), 8));
    }
    static void store_bf16(std::uint16_t* p, F v) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(round_bf16(v)));
    }
    static void store_i8(std::int8_t* p, I v) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(v));
    }

    static I to_int(F v) { return _mm512_cvtps_epi32(v); }
    static F to_float(I v) { return _mm512_cvtepi32_ps(v); }
    static I int_zero() { return _mm512_setzero_si512(); }
    static I int_set(std::int32_t n) { return _mm512_set1_epi32(n); }
    static I int_load(const std::int32_t* p) { return _mm512_loadu_si512(p); }
    static void int_store(std::int32_t* p, I v) { _mm512_storeu_si512(p, v); }
    static I int_add(I a, I b) { return _mm512_add_epi32(a, b); }
    static I int_sub(I a, I b) { return _mm512_sub_epi32(a, b); }
    static I int_mul(I a, I b) { return _mm512_mullo_epi32(a, b); }
    static F power_of_two(I n) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23));
    }

private:
    static __mmask16 first_lanes(int n) { return static_cast<__mmask16>(n > 0 ? (1u << n) - 1u : 0u); }
    static __m256 low_half(F v) { return _mm512_castps512_ps256(v); }
    // As doubles: taking out eight floats would need AVX512DQ.
    static __m256 high_half(F v) { return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1)); }
    static __m128i load_16_bytes(const std::uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
    static __m256i load_16_words(const std::uint16_t* p) {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    }
    // The upper half of each lane, rounded to nearest even, as a 32-bit number. Not the bf16 instruction: it flushes
    // subnormal numbers.
    static __m512i round_bf16(F v) {
        const __m512i bits = _mm512_castps_si512(v);
        const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
        const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
        const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
        const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
        return _mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, quiet), 16);
    }
};

}  // namespace
}  // namespace octavo
