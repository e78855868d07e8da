// Integer dot products with NEON's dotprod extension (Armv8.2): SDOT multiplies signed by signed bytes and adds four
// neighbours to an int32 lane.
//
// Codes of up to 5 bits are signed bytes as they are; codes of 8 bits are centred. So USDOT of the i8mm extension would
// save one exclusive-or a step and nothing else, and its matrix products (SMMLA) want eight inputs of one output side
// by side, another layout than the one all units share: i8mm is not used.
#pragma once

#include <arm_neon.h>

#include "kernels/linear_layout.hpp"
#include "lanes/neon.hpp"

namespace octavo {
namespace {

struct DotNeon {
    using Lanes = Neon;
    using Totals = Neon::I;

    // Four outputs a register, four inputs each.
    struct Step {
        uint8x16_t quarter[Neon::kQuarters];
    };

    static constexpr int centre(int code_bits) { return code_bits == 8 ? 128 : 0; }

    template <int bits, int index>
    static Step step(const std::uint8_t* octet) {
        return {{quarter_step<bits, index>(octet), quarter_step<bits, index>(octet + 16),
                 quarter_step<bits, index>(octet + 32), quarter_step<bits, index>(octet + 48)}};
    }
    static void store_step(std::uint8_t* p, const Step& step) {
        for (int i = 0; i < Neon::kQuarters; ++i) vst1q_u8(p + 16 * i, step.quarter[i]);
    }
    static Totals load_zeros(const std::uint8_t* zeros) {
        const uint8x16_t bytes = vld1q_u8(zeros);
        const uint16x8_t low = vmovl_u8(vget_low_u8(bytes)), high = vmovl_u8(vget_high_u8(bytes));
        return {{widen(vget_low_u16(low)), widen(vget_high_u16(low)), widen(vget_low_u16(high)),
                 widen(vget_high_u16(high))}};
    }

    template <int stored, int code_bits, int first, int end, int rows>
    [[gnu::always_inline]] static void dot(const std::uint8_t* octet, const std::int8_t* x, std::int64_t x_stride,
                                           Totals (&totals)[rows]) {
        static_assert(first % 4 == 0 && end % 4 == 0);
        if constexpr (first < end) {
            // One register of activations: the 16 inputs of a quad.
            int8x16_t xs[rows];
            for (int row = 0; row < rows; ++row) xs[row] = vld1q_s8(x + row * x_stride + kStepInputs * first);
            add_step<code_bits, 0>(step<stored, first>(octet), xs, totals);
            add_step<code_bits, 1>(step<stored, first + 1>(octet), xs, totals);
            add_step<code_bits, 2>(step<stored, first + 2>(octet), xs, totals);
            add_step<code_bits, 3>(step<stored, first + 3>(octet), xs, totals);
            dot<stored, code_bits, first + 4, end>(octet, x, x_stride, totals);
        }
    }

private:
    static int32x4_t widen(uint16x4_t v) { return vreinterpretq_s32_u32(vmovl_u16(v)); }

    template <int shift>
    static uint8x16_t shifted_down(uint8x16_t v) {
        if constexpr (shift > 0) return vshrq_n_u8(v, shift);
        if constexpr (shift < 0) return vshlq_n_u8(v, -shift);
        return v;
    }

    template <int bits, int index>
    static uint8x16_t quarter_step(const std::uint8_t* octet) {
        if constexpr (bits == kFp4) return vqtbl1q_u8(vld1q_u8(kFp4Codes), quarter_step<4, index>(octet));
        const uint8x16_t plane = vld1q_u8(octet + low_plane(bits, index));
        if constexpr (bits == 8) return plane;
        const uint8x16_t mask = vdupq_n_u8(low_mask(bits));
        const uint8x16_t low = vandq_u8(shifted_down<low_shift(bits, index)>(plane), mask);
        if constexpr (bits != 3) return low;
        const uint8x16_t third = shifted_down<index - 2>(vld1q_u8(octet + kHighPlane));
        return vorrq_u8(low, vandq_u8(third, vdupq_n_u8(4)));
    }

    template <int code_bits, int lane, int rows>
    [[gnu::always_inline]] static void add_step(const Step& step, const int8x16_t (&xs)[rows], Totals (&totals)[rows]) {
        for (int i = 0; i < Neon::kQuarters; ++i) {
            const int8x16_t codes = signed_codes<code_bits>(step.quarter[i]);
            for (int row = 0; row < rows; ++row) {
                totals[row].quarter[i] = vdotq_laneq_s32(totals[row].quarter[i], codes, xs[row], lane);
            }
        }
    }

    template <int code_bits>
    static int8x16_t signed_codes(uint8x16_t codes) {
        if constexpr (code_bits == 8) return vreinterpretq_s8_u8(veorq_u8(codes, vdupq_n_u8(0x80)));
        return vreinterpretq_s8_u8(codes);
    }
};

}  // namespace
}  // namespace octavo
