// Built with -mavx2. 32 values at a time, then 8, then one.
#include <immintrin.h>

#include "group_arithmetic.hpp"
#include "quantize_activations.hpp"

namespace octavo {
namespace {

std::uint32_t largest_lane(__m256i lanes) {
    __m128i half = _mm_max_epu32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
    half = _mm_max_epu32(half, _mm_shuffle_epi32(half, _MM_SHUFFLE(1, 0, 3, 2)));
    half = _mm_max_epu32(half, _mm_shuffle_epi32(half, _MM_SHUFFLE(2, 3, 0, 1)));
    return static_cast<std::uint32_t>(_mm_cvtsi128_si32(half));
}

std::uint32_t absmax_bits_of(const float* x, std::int64_t group_size) {
    const __m256i mask = _mm256_set1_epi32(static_cast<int>(kMagnitudeMask));
    __m256i largest = _mm256_setzero_si256();
    std::int64_t i = 0;
    for (; i + 8 <= group_size; i += 8) {
        const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i));
        largest = _mm256_max_epu32(largest, _mm256_and_si256(bits, mask));
    }
    std::uint32_t result = largest_lane(largest);
    for (; i < group_size; ++i) {
        const std::uint32_t bits = magnitude_bits(x[i]);
        result = bits > result ? bits : result;
    }
    return result;
}

// MXCSR's rounding mode is nearest-even in every thread that has not changed it.
__m256i scaled(const float* x, __m256 inverse) {
    return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), inverse));
}

void write_codes(const float* x, std::int64_t group_size, float inverse_scale, std::int8_t* codes) {
    const __m256 inverse = _mm256_set1_ps(inverse_scale);
    // Packing works within 128-bit halves; this order puts the words back.
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    std::int64_t i = 0;
    for (; i + 32 <= group_size; i += 32) {
        const __m256i low = _mm256_packs_epi32(scaled(x + i, inverse), scaled(x + i + 8, inverse));
        const __m256i high = _mm256_packs_epi32(scaled(x + i + 16, inverse), scaled(x + i + 24, inverse));
        const __m256i packed = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + i), packed);
    }
    for (; i + 8 <= group_size; i += 8) {
        const __m256i wide = scaled(x + i, inverse);
        const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
        _mm_storel_epi64(reinterpret_cast<__m128i*>(codes + i), _mm_packs_epi16(words, words));
    }
    for (; i < group_size; ++i) codes[i] = round_code(x[i] * inverse_scale);
}

}  // namespace

std::int64_t quantize_activations_avx2(const float* x, std::int64_t num_groups, std::int64_t group_size,
                                       std::int8_t* codes, float* scales) {
    for (std::int64_t group = 0; group < num_groups; ++group, x += group_size, codes += group_size) {
        const std::uint32_t absmax_bits = absmax_bits_of(x, group_size);
        if (absmax_bits >= kInfinityBits) return group;
        const GroupScale grid = group_scale(absmax_bits);
        scales[group] = grid.scale;
        write_codes(x, group_size, grid.inverse, codes);
    }
    return -1;
}

}  // namespace octavo
