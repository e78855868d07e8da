// Lanes as plain arrays: any processor, and the definition that the others must equal.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "lanes/lanes.hpp"

namespace octavo {
namespace {

struct Portable {
    struct F {
        float lane[kLanes];
    };
    struct I {
        std::int32_t lane[kLanes];
    };

    template <typename Function>
    static F each(Function function) {
        F out;
        for (int i = 0; i < kLanes; ++i) out.lane[i] = function(i);
        return out;
    }
    template <typename Function>
    static I int_each(Function function) {
        I out;
        for (int i = 0; i < kLanes; ++i) out.lane[i] = function(i);
        return out;
    }

    static F zero() { return set(0.0f); }
    static F set(float x) {
        return each([&](int) { return x; });
    }
    static F load(const float* p) {
        return each([&](int i) { return p[i]; });
    }
    static F load_partial(const float* p, int n) {
        return each([&](int i) { return i < n ? p[i] : 0.0f; });
    }
    static void store(float* p, F v) { std::memcpy(p, v.lane, sizeof v.lane); }
    static void store_partial(float* p, F v, int n) {
        for (int i = 0; i < n; ++i) p[i] = v.lane[i];
    }
    static F add(F a, F b) {
        return each([&](int i) { return a.lane[i] + b.lane[i]; });
    }
    static F sub(F a, F b) {
        return each([&](int i) { return a.lane[i] - b.lane[i]; });
    }
    static F mul(F a, F b) {
        return each([&](int i) { return a.lane[i] * b.lane[i]; });
    }
    static F div(F a, F b) {
        return each([&](int i) { return a.lane[i] / b.lane[i]; });
    }
    static F fma(F a, F b, F c) {
        return each([&](int i) { return std::fma(a.lane[i], b.lane[i], c.lane[i]); });
    }
    static F max(F a, F b) {
        return each([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
    }
    static F min(F a, F b) {
        return each([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
    }
    static F sqrt(F v) {
        return each([&](int i) { return std::sqrt(v.lane[i]); });
    }
    static F exponent_part(F v) {
        return each([&](int i) { return from_bits(to_bits(v.lane[i]) & 0x7f800000u); });
    }
    static F where_at_least(F x, F low, F v) {
        return each([&](int i) { return x.lane[i] >= low.lane[i] ? v.lane[i] : 0.0f; });
    }
    static float sum(F v) {
        for (int half = kLanes / 2; half; half /= 2) {
            for (int i = 0; i < half; ++i) v.lane[i] += v.lane[i + half];
        }
        return v.lane[0];
    }
    static float largest(F v) {
        for (int half = kLanes / 2; half; half /= 2) {
            for (int i = 0; i < half; ++i) v.lane[i] = v.lane[i] > v.lane[i + half] ? v.lane[i] : v.lane[i + half];
        }
        return v.lane[0];
    }

    static F load_bf16(const std::uint16_t* p) {
        return each([&](int i) { return from_bits(std::uint32_t{p[i]} << 16); });
    }
    static F load_f16(const std::uint16_t* p) {
        return each([&](int i) { return half_to_float(p[i]); });
    }
    static F load_i8(const std::int8_t* p) {
        return each([&](int i) { return static_cast<float>(p[i]); });
    }
    static F load_e4m3(const std::uint8_t* p) {
        return each(
            [&](int i) { return half_to_float(static_cast<std::uint16_t>((p[i] & 0x80) << 8 | (p[i] & 0x7f) << 7)); });
    }
    static F load_e5m2(const std::uint8_t* p) {
        return each([&](int i) { return half_to_float(static_cast<std::uint16_t>(p[i] << 8)); });
    }
    static void store_bf16(std::uint16_t* p, F v) {
        for (int i = 0; i < kLanes; ++i) {
            const std::uint32_t bits = to_bits(v.lane[i]);
            const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
            const std::uint32_t rounded = nan ? bits | 0x400000u : bits + 0x7fffu + ((bits >> 16) & 1u);
            p[i] = static_cast<std::uint16_t>(rounded >> 16);
        }
    }
    static void store_i8(std::int8_t* p, I v) {
        for (int i = 0; i < kLanes; ++i) p[i] = static_cast<std::int8_t>(v.lane[i]);
    }

    static I to_int(F v) {
        return int_each([&](int i) { return static_cast<std::int32_t>(std::nearbyint(v.lane[i])); });
    }
    static F to_float(I v) {
        return each([&](int i) { return static_cast<float>(v.lane[i]); });
    }
    static I int_zero() { return int_set(0); }
    static I int_set(std::int32_t n) {
        return int_each([&](int) { return n; });
    }
    static I int_load(const std::int32_t* p) {
        return int_each([&](int i) { return p[i]; });
    }
    static void int_store(std::int32_t* p, I v) { std::memcpy(p, v.lane, sizeof v.lane); }
    static I int_add(I a, I b) {
        return int_each([&](int i) { return a.lane[i] + b.lane[i]; });
    }
    static I int_sub(I a, I b) {
        return int_each([&](int i) { return a.lane[i] - b.lane[i]; });
    }
    static I int_mul(I a, I b) {
        return int_each([&](int i) { return a.lane[i] * b.lane[i]; });
    }
    static F power_of_two(I n) {
        return each([&](int i) { return from_bits(static_cast<std::uint32_t>(n.lane[i] + 127) << 23); });
    }

    static float from_bits(std::uint32_t bits) {
        float x;
        std::memcpy(&x, &bits, sizeof x);
        return x;
    }
    static std::uint32_t to_bits(float x) {
        std::uint32_t bits;
        std::memcpy(&bits, &x, sizeof bits);
        return bits;
    }
    // IEEE 754 binary16, subnormals included.
    static float half_to_float(std::uint16_t half) {
        const std::uint32_t sign = std::uint32_t{half & 0x8000u} << 16;
        const std::uint32_t exponent = (half >> 10) & 0x1fu, fraction = half & 0x3ffu;
        if (exponent == 0) {
            const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
            return from_bits(to_bits(magnitude) | sign);
        }
        if (exponent == 31) return from_bits(sign | 0x7f800000u | (fraction << 13));
        return from_bits(sign | ((exponent + 112) << 23) | (fraction << 13));
    }
};

}  // namespace
}  // namespace octavo
