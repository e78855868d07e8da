// What one pass over a row of logits tells: the highest one, and the largest of each block.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "sampling/row_kernels.hpp"

namespace octavo {

struct RowScan {
    const float* logits;
    std::int64_t num_tokens;
    const float* maxima;
    float highest;
    bool is_finite;  // no NaN and a finite highest; -inf for a token that cannot come is fine

    std::int64_t num_blocks() const { return num_scan_blocks(num_tokens); }

    // The lowest id that has the highest logit.
    std::int64_t first_highest() const {
        const std::int64_t block = std::find(maxima, maxima + num_blocks(), highest) - maxima;
        return std::find(logits + block * kScanBlock, logits + num_tokens, highest) - logits;
    }
};

inline RowScan scan_row(const RowKernels& kernels, const float* logits, std::int64_t num_tokens,
                        std::vector<float>& maxima) {
    maxima.resize(static_cast<std::size_t>(num_scan_blocks(num_tokens)));
    const bool has_nan = kernels.block_maxima(logits, num_tokens, maxima.data());
    const float highest = *std::max_element(maxima.begin(), maxima.end());
    return {logits, num_tokens, maxima.data(), highest, !has_nan && std::isfinite(highest)};
}

}  // namespace octavo
