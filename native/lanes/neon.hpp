// Lanes as four NEON registers (AArch64).
//
// Where an Arm instruction means something else than its x86 cousin, the x86 meaning is written out, because it is the
// one that `Portable` defines: max and min return the second number when the numbers are equal or one is NaN.
#pragma once

#include <arm_neon.h>

#include "lanes/lanes.hpp"

namespace octavo {
namespace {

struct Neon {
    static constexpr int kQuarters = 4;
    struct F {
        float32x4_t quarter[kQuarters];
    };
    struct I {
        int32x4_t quarter[kQuarters];
    };

    template <typename Function>
    static F each(Function function) {
        return {{function(0), function(1), function(2), function(3)}};
    }
    template <typename Function>
    static I int_each(Function function) {
        return {{function(0), function(1), function(2), function(3)}};
    }

    static F zero() { return set(0.0f); }
    static F set(float x) {
        return each([&](int) { return vdupq_n_f32(x); });
    }
    static F load(const float* p) {
        return each([&](int i) { return vld1q_f32(p + 4 * i); });
    }
    static F load_partial(const float* p, int n) {
        float lane[kLanes] = {};
        for (int i = 0; i < n; ++i) lane[i] = p[i];
        return load(lane);
    }
    static void store(float* p, F v) {
        for (int i = 0; i < kQuarters; ++i) vst1q_f32(p + 4 * i, v.quarter[i]);
    }
    static void store_partial(float* p, F v, int n) {
        float lane[kLanes];
        store(lane, v);
        for (int i = 0; i < n; ++i) p[i] = lane[i];
    }
    static F add(F a, F b) {
        return each([&](int i) { return vaddq_f32(a.quarter[i], b.quarter[i]); });
    }
    static F sub(F a, F b) {
        return each([&](int i) { return vsubq_f32(a.quarter[i], b.quarter[i]); });
    }
    static F mul(F a, F b) {
        return each([&](int i) { return vmulq_f32(a.quarter[i], b.quarter[i]); });
    }
    static F div(F a, F b) {
        return each([&](int i) { return vdivq_f32(a.quarter[i], b.quarter[i]); });
    }
    static F fma(F a, F b, F c) {
        return each([&](int i) { return vfmaq_f32(c.quarter[i], a.quarter[i], b.quarter[i]); });
    }
    static F max(F a, F b) {
        return each([&](int i) { return larger(a.quarter[i], b.quarter[i]); });
    }
    static F min(F a, F b) {
        return each(
            [&](int i) { return vbslq_f32(vcltq_f32(a.quarter[i], b.quarter[i]), a.quarter[i], b.quarter[i]); });
    }
    static F sqrt(F v) {
        return each([&](int i) { return vsqrtq_f32(v.quarter[i]); });
    }
    static F exponent_part(F v) {
        return each([&](int i) {
            return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(v.quarter[i]), vdupq_n_u32(0x7f800000)));
        });
    }
    static F where_at_least(F x, F low, F v) {
        return each([&](int i) {
            const uint32x4_t keep = vcgeq_f32(x.quarter[i], low.quarter[i]);
            return vreinterpretq_f32_u32(vandq_u32(keep, vreinterpretq_u32_f32(v.quarter[i])));
        });
    }
    static float sum(F v) {
        const float32x4_t even = vaddq_f32(v.quarter[0], v.quarter[2]), odd = vaddq_f32(v.quarter[1], v.quarter[3]);
        const float32x4_t four = vaddq_f32(even, odd);
        const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
        return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
    }
    static float largest(F v) {
        const float32x4_t four = larger(larger(v.quarter[0], v.quarter[2]), larger(v.quarter[1], v.quarter[3]));
        const float32x4_t two = larger(four, vextq_f32(four, four, 2));
        return vgetq_lane_f32(larger(two, vextq_f32(two, two, 1)), 0);
    }

    static F load_bf16(const std::uint16_t* p) {
        return each([&](int i) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)); });
    }
    static F load_f16(const std::uint16_t* p) {
        return each([&](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))); });
    }
    static F load_i8(const std::int8_t* p) {
        const int8x16_t bytes = vld1q_s8(p);
        const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_s8(vget_high_s8(bytes));
        return to_float({{vmovl_s16(vget_low_s16(low)), vmovl_s16(vget_high_s16(low)), vmovl_s16(vget_low_s16(high)),
                          vmovl_s16(vget_high_s16(high))}});
    }
    // A byte's sign lands in the two highest bits of its half; the lower of them belongs to the exponent.
    static F load_e4m3(const std::uint8_t* p) {
        const int8x16_t bytes = vreinterpretq_s8_u8(vld1q_u8(p));
        const auto halves = [](int8x8_t eight) {
            const uint16x8_t words = vreinterpretq_u16_s16(vshlq_n_s16(vmovl_s8(eight), 7));
            return vandq_u16(words, vdupq_n_u16(0xbfff));
        };
        return widen_f16(halves(vget_low_s8(bytes)), halves(vget_high_s8(bytes)));
    }
    static F load_e5m2(const std::uint8_t* p) {
        const uint8x16_t bytes = vld1q_u8(p);
        return widen_f16(vshll_n_u8(vget_low_u8(bytes), 8), vshll_n_u8(vget_high_u8(bytes), 8));
    }
    static void store_bf16(std::uint16_t* p, F v) {
        for (int i = 0; i < kQuarters; ++i) vst1_u16(p + 4 * i, round_bf16(v.quarter[i]));
    }
    static void store_i8(std::int8_t* p, I v) {
        const int16x8_t low = vcombine_s16(vmovn_s32(v.quarter[0]), vmovn_s32(v.quarter[1]));
        const int16x8_t high = vcombine_s16(vmovn_s32(v.quarter[2]), vmovn_s32(v.quarter[3]));
        vst1q_s8(p, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
    }

    static I to_int(F v) {
        return int_each([&](int i) { return vcvtnq_s32_f32(v.quarter[i]); });
    }
    static F to_float(I v) {
        return each([&](int i) { return vcvtq_f32_s32(v.quarter[i]); });
    }
    static I int_zero() { return int_set(0); }
    static I int_set(std::int32_t n) {
        return int_each([&](int) { return vdupq_n_s32(n); });
    }
    static I int_load(const std::int32_t* p) {
        return int_each([&](int i) { return vld1q_s32(p + 4 * i); });
    }
    static void int_store(std::int32_t* p, I v) {
        for (int i = 0; i < kQuarters; ++i) vst1q_s32(p + 4 * i, v.quarter[i]);
    }
    static I int_add(I a, I b) {
        return int_each([&](int i) { return vaddq_s32(a.quarter[i], b.quarter[i]); });
    }
    static I int_sub(I a, I b) {
        return int_each([&](int i) { return vsubq_s32(a.quarter[i], b.quarter[i]); });
    }
    static I int_mul(I a, I b) {
        return int_each([&](int i) { return vmulq_s32(a.quarter[i], b.quarter[i]); });
    }
    static F power_of_two(I n) {
        return each(
            [&](int i) { return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n.quarter[i], vdupq_n_s32(127)), 23)); });
    }

private:
    static F widen_f16(uint16x8_t low, uint16x8_t high) {
        const auto four = [](uint16x4_t halves) { return vcvt_f32_f16(vreinterpret_f16_u16(halves)); };
        return {
            {four(vget_low_u16(low)), four(vget_high_u16(low)), four(vget_low_u16(high)), four(vget_high_u16(high))}};
    }
    static float32x4_t larger(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
    // The upper half of each lane, rounded to nearest even. A NaN, the only number not equal to itself, stays one.
    static uint16x4_t round_bf16(float32x4_t v) {
        const uint32x4_t bits = vreinterpretq_u32_f32(v);
        const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
        const uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
        const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
        return vshrn_n_u32(vbslq_u32(vceqq_f32(v, v), rounded, quiet), 16);
    }
};

}  // namespace
}  // namespace octavo
