// What SIMDe 0.7.4 lacks, after the operation sections of Intel's Intrinsics Guide, in AVX2 halves.
#pragma once

#include <cstdint>
#include <cstring>

namespace emulated {

inline __m512 join(__m256 low, __m256 high) {
    simde__m512_private out;
    out.m256[0] = low;
    out.m256[1] = high;
    return simde__m512_from_private(out);
}
inline __m512i join(__m256i low, __m256i high) {
    simde__m512i_private out;
    out.m256i[0] = low;
    out.m256i[1] = high;
    return simde__m512i_from_private(out);
}
inline __m256 half(__m512 v, int which) { return simde__m512_to_private(v).m256[which]; }
inline __m256i half(__m512i v, int which) { return simde__m512i_to_private(v).m256i[which]; }

inline __m512i cvtps_epi32(__m512 v) {
    return join(_mm256_cvtps_epi32(half(v, 0)), _mm256_cvtps_epi32(half(v, 1)));
}
inline __m512 cvtepi32_ps(__m512i v) { return join(_mm256_cvtepi32_ps(half(v, 0)), _mm256_cvtepi32_ps(half(v, 1))); }
inline __m512i cvtepi8_epi32(__m128i v) {
    return join(_mm256_cvtepi8_epi32(v), _mm256_cvtepi8_epi32(_mm_srli_si128(v, 8)));
}
inline __m512i cvtepu8_epi32(__m128i v) {
    return join(_mm256_cvtepu8_epi32(v), _mm256_cvtepu8_epi32(_mm_srli_si128(v, 8)));
}
inline __m512i cvtepu16_epi32(__m256i v) {
    return join(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(v)),
                _mm256_cvtepu16_epi32(_mm256_extracti128_si256(v, 1)));
}
inline __m512 cvtph_ps(__m256i v) {
    return join(_mm256_cvtph_ps(_mm256_castsi256_si128(v)), _mm256_cvtph_ps(_mm256_extracti128_si256(v, 1)));
}
// The low bits of each lane, as the hardware truncates.
template <typename Narrow, typename Out>
Out truncate(__m512i v) {
    const simde__m512i_private from = simde__m512i_to_private(v);
    Narrow narrow[16];
    for (int i = 0; i < 16; ++i) narrow[i] = static_cast<Narrow>(from.i32[i]);
    Out out;
    std::memcpy(&out, narrow, sizeof out);
    return out;
}
// A lane outside the mask does not touch memory.
inline __m512 maskz_loadu_ps(__mmask16 mask, const void* p) {
    float lanes[16] = {};
    for (int i = 0; i < 16; ++i) {
        if (mask >> i & 1) std::memcpy(&lanes[i], static_cast<const char*>(p) + 4 * i, 4);
    }
    return _mm512_loadu_ps(lanes);
}
inline void mask_storeu_ps(void* p, __mmask16 mask, __m512 v) {
    float lanes[16];
    _mm512_storeu_ps(lanes, v);
    for (int i = 0; i < 16; ++i) {
        if (mask >> i & 1) std::memcpy(static_cast<char*>(p) + 4 * i, &lanes[i], 4);
    }
}

}  // namespace emulated

#define _mm512_cvtps_epi32(v) emulated::cvtps_epi32(v)
#define _mm512_cvtepi32_ps(v) emulated::cvtepi32_ps(v)
#define _mm512_cvtepi8_epi32(v) emulated::cvtepi8_epi32(v)
#define _mm512_cvtepu8_epi32(v) emulated::cvtepu8_epi32(v)
#define _mm512_cvtepu16_epi32(v) emulated::cvtepu16_epi32(v)
#define _mm512_cvtph_ps(v) emulated::cvtph_ps(v)
#define _mm512_cvtepi32_epi16(v) (emulated::truncate<std::uint16_t, __m256i>(v))
#define _mm512_cvtepi32_epi8(v) (emulated::truncate<std::uint8_t, __m128i>(v))
#define _mm512_maskz_loadu_ps(mask, p) emulated::maskz_loadu_ps(mask, p)
#define _mm512_mask_storeu_ps(p, mask, v) emulated::mask_storeu_ps(p, mask, v)
