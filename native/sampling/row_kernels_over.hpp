// The row kernels over lanes: included by each unit, which compiles them for its own instruction set.
#pragma once

#include <cmath>

#include "lanes/lanes.hpp"
#include "lanes/math.hpp"
#include "sampling/row_kernels.hpp"

namespace octavo {
namespace {

template <typename L>
struct RowKernelsOver {
    using F = typename L::F;
    static constexpr int kSums = 8;

    static bool block_maxima(const float* x, std::int64_t num_tokens, float* maxima) {
        F ordered = L::set(1.0f);  // a lane turns 0 at its first NaN
        const std::int64_t num_whole = num_tokens / kScanBlock;
        for (std::int64_t block = 0; block < num_whole; ++block) {
            maxima[block] = largest_of_block(x + block * kScanBlock, ordered);
        }
        if (num_whole * kScanBlock < num_tokens) {
            float padded[kScanBlock];
            for (std::int64_t i = 0, first = num_whole * kScanBlock; i < kScanBlock; ++i) {
                padded[i] = first + i < num_tokens ? x[first + i] : -HUGE_VALF;
            }
            maxima[num_whole] = largest_of_block(padded, ordered);
        }
        return L::sum(ordered) != static_cast<float>(kLanes);
    }

    [[gnu::flatten]] static void weigh(const float* x, std::int64_t num_tokens, float highest, float temperature,
                                       float* weights, double* masses) {
        const F top = L::set(highest), scale = L::set(temperature);
        std::int64_t i = 0;
        for (; i + kLanes <= num_tokens; i += kLanes) {
            L::store(weights + i, exp<L>(L::div(L::sub(L::load(x + i), top), scale)));
        }
        const int rest = static_cast<int>(num_tokens - i);
        if (rest > 0)
            L::store_partial(weights + i, exp<L>(L::div(L::sub(L::load_partial(x + i, rest), top), scale)), rest);
        for (std::int64_t block = 0; block < num_scan_blocks(num_tokens); ++block) {
            const std::int64_t first = block * kScanBlock;
            const std::int64_t left = num_tokens - first;
            masses[block] = mass_of(weights + first, left < kScanBlock ? left : kScanBlock);
        }
    }

    [[gnu::flatten]] static void mass_from_levels(const float* weights, std::int64_t num_tokens, const float* levels,
                                                  double* masses) {
        F sums[kNumMassLevels], lowest[kNumMassLevels];
        for (int j = 0; j < kNumMassLevels; ++j) {
            sums[j] = L::zero();
            lowest[j] = L::set(levels[j]);
        }
        std::int64_t i = 0;
        for (; i + kLanes <= num_tokens; i += kLanes) {
            const F w = L::load(weights + i);
            for (int j = 0; j < kNumMassLevels; ++j) sums[j] = L::add(sums[j], L::where_at_least(w, lowest[j], w));
        }
        const F rest = L::load_partial(weights + i, static_cast<int>(num_tokens - i));
        for (int j = 0; j < kNumMassLevels; ++j) {
            masses[j] = static_cast<double>(L::sum(L::add(sums[j], L::where_at_least(rest, lowest[j], rest))));
        }
    }

    static std::int64_t count_greater(const float* x, std::int64_t num_tokens, float than) {
        std::int64_t count = 0;
        for (std::int64_t i = 0; i < num_tokens; ++i) count += x[i] > than;
        return count;
    }

    static std::int64_t count_equal(const float* x, std::int64_t num_tokens, float to) {
        std::int64_t count = 0;
        for (std::int64_t i = 0; i < num_tokens; ++i) count += x[i] == to;
        return count;
    }

private:
    static float largest_of_block(const float* x, F& ordered) {
        const F one = L::set(1.0f);
        F largest = L::load(x);
        ordered = L::min(ordered, L::where_at_least(largest, largest, one));
        for (std::int64_t i = kLanes; i < kScanBlock; i += kLanes) {
            const F next = L::load(x + i);
            ordered = L::min(ordered, L::where_at_least(next, next, one));
            largest = L::max(largest, next);
        }
        return L::largest(largest);
    }

    // Eight running sums, folded as a tree: an order that every instruction set can keep.
    static double mass_of(const float* weights, std::int64_t count) {
        double sums[kSums] = {};
        std::int64_t i = 0;
        for (; i + kSums <= count; i += kSums) {
            for (int j = 0; j < kSums; ++j) sums[j] += static_cast<double>(weights[i + j]);
        }
        for (int j = 0; i < count; ++i, ++j) sums[j] += static_cast<double>(weights[i]);
        for (int half = kSums / 2; half; half /= 2) {
            for (int j = 0; j < half; ++j) sums[j] += sums[j + half];
        }
        return sums[0];
    }
};

template <typename L>
RowKernels row_kernels_over(const char* name, const char* needs, bool available) {
    using K = RowKernelsOver<L>;
    return {name, needs, available, K::block_maxima, K::weigh, K::mass_from_levels, K::count_greater, K::count_equal};
}

}  // namespace
}  // namespace octavo
