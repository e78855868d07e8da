// Sixteen float or int32 lanes, whatever the instruction set.
//
// Every instruction set gives the same struct with the same static functions: `Portable` (plain arrays), `Avx2` (two
// registers), `Avx512` (one), `Neon` (four). Kernels are templates over it, so one text serves all units, and because
// the number of lanes, the order of every reduction and each rounding are the same everywhere, so are the bits.
//
//     F, I                         16 floats, 16 int32
//     zero() set(x) load(p) store(p, v)              unaligned
//     load_partial(p, n) store_partial(p, v, n)      lanes [0, n), n <= 16; the others are zero, or left alone
//     add sub mul div fma(a, b, c) = a * b + c       fma rounds once
//     max(a, b) min(a, b)                            of finite numbers and infinities; NaN in b gives NaN
//     sum(v)                       fixed tree: lane i + lane i + 8, then + 4, + 2, + 1
//     largest(v)                   maximum of the lanes, by the same tree
//     load_f16 load_bf16 load_i8   16 stored values -> floats (exact)
//     load_e4m3 load_e5m2          16 FP8 codes, none of them NaN -> floats (exact); e4m3 times 2^-8, so that it is a half
//     store_bf16(p, v)             round to nearest even; NaN stays NaN
//     store_i8(p, v)               16 ints in [-128, 127]
//     to_int(v) to_float(i)        round to nearest even, |v| < 2^31; int32 -> float rounds to nearest even
//     int_zero() int_set(n) int_add(a, b) int_sub(a, b) int_mul(a, b) int_store(p, i) int_load(p)
//     power_of_two(i)              2^i as floats, -126 <= i <= 127
//     sqrt(v)
//     exponent_part(v)             2^floor(log2 |v|) for normal v, 0 for zeros and subnormals
//     where_at_least(x, low, v)    v where x >= low, otherwise 0 (NaN counts as below)
#pragma once

#include <cstdint>

namespace octavo {

constexpr int kLanes = 16;

}  // namespace octavo
