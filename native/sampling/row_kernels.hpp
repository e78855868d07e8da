// The passes over a whole row of logits, once for each instruction set; all give the same bits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace octavo {

// Tokens that share one entry of a scan: a block whose largest logit is out of reach is never looked at again.
constexpr std::int64_t kScanBlock = 64;

// Static, as all that units share in headers: a common copy might be the one compiled for the largest of them.
static inline std::int64_t num_scan_blocks(std::int64_t num_tokens) {
    return (num_tokens + kScanBlock - 1) / kScanBlock;
}

constexpr int kNumMassLevels = 4;

struct RowKernels {
    const char* name;
    const char* needs;  // processor features, "" for none
    bool available;     // on this processor
    // maxima[b] = the largest of block b; returns whether any number is NaN (then the maxima mean nothing).
    bool (*block_maxima)(const float* x, std::int64_t num_tokens, float* maxima);
    // weights[i] = e^((x[i] - highest) / temperature), 0 below e^-87; masses[b] = the sum of block b's weights.
    void (*weigh)(const float* x, std::int64_t num_tokens, float highest, float temperature, float* weights,
                  double* masses);
    // masses[j] = the sum of the weights of at least levels[j], for kNumMassLevels levels; good to a part in a thousand.
    void (*mass_from_levels)(const float* weights, std::int64_t num_tokens, const float* levels, double* masses);
    std::int64_t (*count_greater)(const float* x, std::int64_t num_tokens, float than);
    std::int64_t (*count_equal)(const float* x, std::int64_t num_tokens, float to);
};

// All units of this build, slowest first.
const std::vector<RowKernels>& row_kernels();

// By name, "" for the last one that runs here. Throws std::invalid_argument for one that is unknown or cannot run here.
const RowKernels& row_kernels_named(const std::string& name);

}  // namespace octavo
