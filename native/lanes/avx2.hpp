// Lanes as two AVX2 registers. Needs AVX2, FMA and F16C.
#pragma once

#include <immintrin.h>

#include "lanes/lanes.hpp"

namespace octavo {
namespace {

struct Avx2 {
    struct F {
        __m256 low, high;
    };
    struct I {
        __m256i low, high;
    };

    static F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
    static F set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
    static F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
    static F load_partial(const float* p, int n) {
        return {_mm256_maskload_ps(p, first_lanes(n)), _mm256_maskload_ps(p + 8, first_lanes(n - 8))};
    }
    static void store(float* p, F v) {
        _mm256_storeu_ps(p, v.low);
        _mm256_storeu_ps(p + 8, v.high);
    }
    static void store_partial(float* p, F v, int n) {
        _mm256_maskstore_ps(p, first_lanes(n), v.low);
        _mm256_maskstore_ps(p + 8, first_lanes(n - 8), v.high);
    }
    static F add(F a, F b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
    static F sub(F a, F b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
    static F mul(F a, F b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
    static F div(F a, F b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
    static F fma(F a, F b, F c) {
        return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
    }
    static F max(F a, F b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
    static F min(F a, F b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
    static F sqrt(F v) { return {_mm256_sqrt_ps(v.low), _mm256_sqrt_ps(v.high)}; }
    static F exponent_part(F v) {
        const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7f800000));
        return {_mm256_and_ps(v.low, mask), _mm256_and_ps(v.high, mask)};
    }
    static F where_at_least(F x, F low, F v) {
        return {_mm256_and_ps(v.low, _mm256_cmp_ps(x.low, low.low, _CMP_GE_OQ)),
                _mm256_and_ps(v.high, _mm256_cmp_ps(x.high, low.high, _CMP_GE_OQ))};
    }
    static float sum(F v) {
        const __m256 eight = _mm256_add_ps(v.low, v.high);
        const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
    }
    static float largest(F v) {
        const __m256 eight = _mm256_max_ps(v.low, v.high);
        const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
    }

    static F load_bf16(const std::uint16_t* p) {
        return {widen_bf16(load_8_words(p)), widen_bf16(load_8_words(p + 8))};
    }
    static F load_f16(const std::uint16_t* p) {
        return {_mm256_cvtph_ps(load_8_words(p)), _mm256_cvtph_ps(load_8_words(p + 8))};
    }
    static F load_i8(const std::int8_t* p) {
        return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_8_bytes(p))),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_8_bytes(p + 8)))};
    }
    // A byte's sign lands in the two highest bits of its half; the lower of them belongs to the exponent.
    static F load_e4m3(const std::uint8_t* p) {
        const __m256i words = _mm256_slli_epi16(_mm256_cvtepi8_epi16(load_16_bytes(p)), 7);
        return widen_f16(_mm256_and_si256(words, _mm256_set1_epi16(static_cast<short>(0xbfff))));
    }
    static F load_e5m2(const std::uint8_t* p) {
        return widen_f16(_mm256_slli_epi16(_mm256_cvtepu8_epi16(load_16_bytes(p)), 8));
    }
    static void store_bf16(std::uint16_t* p, F v) {
        const __m256i packed = _mm256_packus_epi32(round_bf16(v.low), round_bf16(v.high));
        const __m256i ordered = _mm256_permute4x64_epi64(packed, _MM_SHUFFLE(3, 1, 2, 0));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), ordered);
    }
    static void store_i8(std::int8_t* p, I v) {
        const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(v.low, v.high), _MM_SHUFFLE(3, 1, 2, 0));
        const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
    }

    static I to_int(F v) { return {_mm256_cvtps_epi32(v.low), _mm256_cvtps_epi32(v.high)}; }
    static F to_float(I v) { return {_mm256_cvtepi32_ps(v.low), _mm256_cvtepi32_ps(v.high)}; }
    static I int_zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
    static I int_set(std::int32_t n) { return {_mm256_set1_epi32(n), _mm256_set1_epi32(n)}; }
    static I int_load(const std::int32_t* p) {
        return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
                _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
    }
    static void int_store(std::int32_t* p, I v) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v.low);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), v.high);
    }
    static I int_add(I a, I b) { return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)}; }
    static I int_sub(I a, I b) { return {_mm256_sub_epi32(a.low, b.low), _mm256_sub_epi32(a.high, b.high)}; }
    static I int_mul(I a, I b) { return {_mm256_mullo_epi32(a.low, b.low), _mm256_mullo_epi32(a.high, b.high)}; }
    static F power_of_two(I n) { return {power_of_two(n.low), power_of_two(n.high)}; }

private:
    static __m256 power_of_two(__m256i n) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
    }
    static __m256i first_lanes(int n) {
        return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    }
    static __m128i load_8_bytes(const std::int8_t* p) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)); }
    static __m128i load_8_words(const std::uint16_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
    static __m128i load_16_bytes(const std::uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
    static F widen_f16(__m256i halves) {
        return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
    }
    static __m256 widen_bf16(__m128i words) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16));
    }
    // The upper half of each lane, rounded to nearest even, as a 32-bit number.
    static __m256i round_bf16(__m256 v) {
        const __m256i bits = _mm256_castps_si256(v);
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
        const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
        const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
        const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
        return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    }
};

}  // namespace
}  // namespace octavo
