// Built with -mavx512f. 16 values at a time, the tail under a mask.
#include <immintrin.h>

#include "group_arithmetic.hpp"
#include "quantize_activations.hpp"

namespace octavo {
namespace {

// Lanes of a step that starts at `i`: all 16, or what is left of the group.
__mmask16 lanes_at(std::int64_t i, std::int64_t group_size) {
    const std::int64_t left = group_size - i;
    return left >= 16 ? __mmask16{0xffff} : static_cast<__mmask16>((1u << left) - 1u);
}

std::uint32_t absmax_bits_of(const float* x, std::int64_t group_size) {
    const __m512i mask = _mm512_set1_epi32(static_cast<int>(kMagnitudeMask));
    __m512i largest = _mm512_setzero_si512();
    for (std::int64_t i = 0; i < group_size; i += 16) {
        const __m512i bits = _mm512_maskz_loadu_epi32(lanes_at(i, group_size), x + i);
        largest = _mm512_max_epu32(largest, _mm512_and_si512(bits, mask));
    }
    return _mm512_reduce_max_epu32(largest);
}

void write_codes(const float* x, std::int64_t group_size, float inverse_scale, std::int8_t* codes) {
    const __m512 inverse = _mm512_set1_ps(inverse_scale);
    for (std::int64_t i = 0; i < group_size; i += 16) {
        const __mmask16 lanes = lanes_at(i, group_size);
        const __m512 values = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, x + i), inverse);
        // MXCSR's rounding mode is nearest-even in every thread that has not changed it.
        _mm512_mask_cvtepi32_storeu_epi8(codes + i, lanes, _mm512_cvtps_epi32(values));
    }
}

}  // namespace

std::int64_t quantize_activations_avx512(const float* x, std::int64_t num_groups, std::int64_t group_size,
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
