// exp and what is made of it, over lanes. The same operations in the same order on every instruction set.
// Always inlined: lanes passed to a call go through memory.
#pragma once

#include "lanes/lanes.hpp"

namespace octavo {
namespace {

// e^x for x <= 88 (larger x give e^88); below -87 the result is 0; NaN stays NaN. Relative error under 2e-7 (measured).
// x = n ln 2 + r with |r| <= ln 2 / 2, in two pieces of ln 2 (Cody and Waite 1980); e^r by a polynomial of degree 6
// (Cephes' coefficients for this interval).
template <typename L>
[[gnu::always_inline]] inline typename L::F exp(typename L::F x) {
    using F = typename L::F;
    const F low = L::set(-87.0f), high = L::set(88.0f);
    const F bounded = L::min(high, L::max(low, x));  // in this order NaN passes (lanes.hpp)
    const typename L::I n = L::to_int(L::mul(bounded, L::set(1.44269504088896341f)));
    const F whole = L::to_float(n);
    F r = L::fma(whole, L::set(-0.693359375f), bounded);
    r = L::fma(whole, L::set(2.12194440e-4f), r);
    F p = L::set(1.9875691500e-4f);
    p = L::fma(p, r, L::set(1.3981999507e-3f));
    p = L::fma(p, r, L::set(8.3334519073e-3f));
    p = L::fma(p, r, L::set(4.1665795894e-2f));
    p = L::fma(p, r, L::set(1.6666665459e-1f));
    p = L::fma(p, r, L::set(5.0000001201e-1f));
    p = L::fma(p, L::mul(r, r), L::add(r, L::set(1.0f)));
    const F value = L::mul(p, L::power_of_two(n));
    return L::fma(bounded, L::zero(), L::where_at_least(x, low, value));
}

// x / (1 + e^-x)
template <typename L>
[[gnu::always_inline]] inline typename L::F silu(typename L::F x) {
    return L::div(x, L::add(L::set(1.0f), exp<L>(L::sub(L::zero(), x))));
}

// 1 - 2 / (e^2x + 1)
template <typename L>
[[gnu::always_inline]] inline typename L::F tanh(typename L::F x) {
    const typename L::F e = exp<L>(L::add(x, x));
    return L::sub(L::set(1.0f), L::div(L::set(2.0f), L::add(e, L::set(1.0f))));
}

// 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
template <typename L>
[[gnu::always_inline]] inline typename L::F gelu_tanh(typename L::F x) {
    const typename L::F cube = L::mul(L::mul(x, x), x);
    const typename L::F inner = L::mul(L::fma(cube, L::set(0.044715f), x), L::set(0.7978845608028654f));
    return L::mul(L::mul(x, L::set(0.5f)), L::add(L::set(1.0f), tanh<L>(inner)));
}

// cap * tanh(x / cap)
template <typename L>
[[gnu::always_inline]] inline typename L::F capped(typename L::F x, typename L::F cap) {
    return L::mul(cap, tanh<L>(L::div(x, cap)));
}

}  // namespace
}  // namespace octavo
