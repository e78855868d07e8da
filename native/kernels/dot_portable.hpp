// Integer dot products as plain loops: the definition that every other dot_<isa>.hpp must equal.
//
// A dot policy D for an instruction set has
//
//     Lanes                             the lanes type it works with
//     Totals                            Lanes::I, 16 int32 sums, one for each output of a tile
//     Step                              the 64 codes of one step in registers
//     centre(code_bits)                 what dot() subtracts from each code (0, or 128 where bytes must be signed)
//     step<bits, index>(octet)          step `index` (0..7) of an octet packed with `bits` bits, or of kFp4
//     store_step(p, step)               as 64 bytes, which is the 8-bit packing of the same codes; p is aligned to 64
//     load_zeros(p)                     16 bytes -> Totals
//     dot<stored, code_bits, first, end>(octet, x, x_stride, totals)
//                                       for each of `rows` rows: totals += sum of (code - centre) * activation over
//                                       steps [first, end) of an octet. Codes are packed with `stored` bits and below
//                                       2^code_bits: stored 8, code_bits 4 is a 4-bit octet after store_step.
#pragma once

#include "kernels/linear_layout.hpp"
#include "lanes/portable.hpp"

namespace octavo {
namespace {

struct DotPortable {
    using Lanes = Portable;
    using Totals = Portable::I;

    struct Step {
        std::uint8_t code[kStepBytes];
    };

    static constexpr int centre(int) { return 0; }

    template <int bits, int index>
    static Step step(const std::uint8_t* octet) {
        return step_at<bits>(octet, index);
    }
    static void store_step(std::uint8_t* p, const Step& step) { std::memcpy(p, step.code, sizeof step.code); }
    static Totals load_zeros(const std::uint8_t* zeros) {
        return Portable::int_each([&](int i) { return std::int32_t{zeros[i]}; });
    }

    template <int stored, int, int first, int end, int rows>
    static void dot(const std::uint8_t* octet, const std::int8_t* x, std::int64_t x_stride, Totals (&totals)[rows]) {
        for (int index = first; index < end; ++index) {
            const Step codes = step_at<stored>(octet, index);
            for (int row = 0; row < rows; ++row) add(codes, x + row * x_stride + kStepInputs * index, totals[row]);
        }
    }

private:
    // Not inlined: this unit is for being right, and its compile time is everybody's.
    template <int bits>
    [[gnu::noinline]] static Step step_at(const std::uint8_t* octet, int index) {
        Step out;
        if constexpr (bits == kFp4) {
            out = step_at<4>(octet, index);
            for (std::uint8_t& code : out.code) code = kFp4Codes[code];
            return out;
        }
        const std::uint8_t* plane = octet + low_plane(bits, index);
        const int shift = low_shift(bits, index);
        for (int i = 0; i < kStepBytes; ++i) out.code[i] = (plane[i] >> shift) & low_mask(bits);
        if constexpr (bits == 3) {
            for (int i = 0; i < kStepBytes; ++i) out.code[i] |= ((octet[kHighPlane + i] >> index) & 1) << 2;
        }
        return out;
    }

    [[gnu::noinline]] static void add(const Step& codes, const std::int8_t* x, Totals& total) {
        for (int output = 0; output < kLanes; ++output) {
            const std::uint8_t* code = codes.code + kStepInputs * output;
            total.lane[output] += code[0] * x[0] + code[1] * x[1] + code[2] * x[2] + code[3] * x[3];
        }
    }
};

}  // namespace
}  // namespace octavo
