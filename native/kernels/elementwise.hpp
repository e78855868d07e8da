// What is done feature by feature: RMS norm, residual additions, gated activations, rotary positions, soft caps.
//
// Any number of features: whole lanes, then one partial step, which computes the same for the lanes it has.
#pragma once

#include <cstdint>

#include "kernels/kernels.hpp"
#include "lanes/math.hpp"

namespace octavo {
namespace {

// Calls body(i, count) for every 16 features and for what is left; `count` lanes start at feature `i`.
template <typename Body>
void each_lanes(std::int64_t features, Body body) {
    std::int64_t i = 0;
    for (; i + kLanes <= features; i += kLanes) body(i, kLanes);
    if (i < features) body(i, static_cast<int>(features - i));
}

template <typename L>
[[gnu::always_inline]] inline typename L::F load_lanes(const float* p, int count) {
    return count == kLanes ? L::load(p) : L::load_partial(p, count);
}

template <typename L>
[[gnu::always_inline]] inline void store_lanes(float* p, typename L::F v, int count) {
    if (count == kLanes) {
        L::store(p, v);
    } else {
        L::store_partial(p, v, count);
    }
}

// One chain of fma per lane over the features in order, then the fixed tree.
template <typename L>
float sum_of_squares(const float* x, std::int64_t features) {
    typename L::F squares = L::zero();
    each_lanes(features, [&](std::int64_t i, int count) {
        const typename L::F v = load_lanes<L>(x + i, count);
        squares = L::fma(v, v, squares);
    });
    return L::sum(squares);
}

// y = (x * (1 / sqrt(mean(x^2) + eps))) * weight; Zhang and Sennrich 2019.
template <typename L>
void rms_norm(const float* x, const float* weight, float eps, std::int64_t features, float* y) {
    const float mean = sum_of_squares<L>(x, features) / static_cast<float>(features);
    const typename L::F inverse = L::div(L::set(1.0f), L::sqrt(L::set(mean + eps)));
    each_lanes(features, [&](std::int64_t i, int count) {
        const typename L::F normed = L::mul(load_lanes<L>(x + i, count), inverse);
        store_lanes<L>(y + i, L::mul(normed, load_lanes<L>(weight + i, count)), count);
    });
}

template <typename L>
void add(const float* x, std::int64_t features, float* y) {
    each_lanes(features, [&](std::int64_t i, int count) {
        store_lanes<L>(y + i, L::add(load_lanes<L>(y + i, count), load_lanes<L>(x + i, count)), count);
    });
}

template <typename L, typename Activation>
void gated_by(float* gate, const float* up, std::int64_t features, Activation activation) {
    each_lanes(features, [&](std::int64_t i, int count) {
        const typename L::F active = activation(load_lanes<L>(gate + i, count));
        store_lanes<L>(gate + i, L::mul(active, load_lanes<L>(up + i, count)), count);
    });
}

template <typename L>
void gated(float* gate, const float* up, std::int64_t features, ActivationKind kind) {
    using F = typename L::F;
    if (kind == ActivationKind::silu) {
        gated_by<L>(gate, up, features, [](F x) { return silu<L>(x); });
    } else {
        gated_by<L>(gate, up, features, [](F x) { return gelu_tanh<L>(x); });
    }
}

// (a, b) -> (a cos - b sin, b cos + a sin) for a in the first half and b in the second; every product rounds.
template <typename L>
void rope(float* head, const float* cos, const float* sin, std::int64_t half) {
    using F = typename L::F;
    each_lanes(half, [&](std::int64_t i, int count) {
        const F a = load_lanes<L>(head + i, count), b = load_lanes<L>(head + half + i, count);
        const F c = load_lanes<L>(cos + i, count), s = load_lanes<L>(sin + i, count);
        store_lanes<L>(head + i, L::sub(L::mul(a, c), L::mul(b, s)), count);
        store_lanes<L>(head + half + i, L::add(L::mul(b, c), L::mul(a, s)), count);
    });
}

template <typename L>
void softcap(float* x, std::int64_t features, float softcap) {
    const typename L::F cap = L::set(softcap);
    each_lanes(features, [&](std::int64_t i, int count) {
        store_lanes<L>(x + i, capped<L>(load_lanes<L>(x + i, count), cap), count);
    });
}

}  // namespace
}  // namespace octavo
