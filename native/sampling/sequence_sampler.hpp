// The choice of one sequence's next token from a row of logits, in vLLM's order: bias, forbidden ends, penalties,
// temperature, top-k, min-p, top-p, draw.
#pragma once

#include <cstdint>
#include <vector>

#include "sampling/candidates.hpp"
#include "sampling/logit_adjustment.hpp"
#include "sampling/row_kernels.hpp"

namespace octavo {

// What `sample` answers for a row that holds NaN, or whose highest logit is infinite.
constexpr std::int64_t kNonFinite = -1;

struct SamplingRules {
    double temperature = 1.0;  // 0: greedy
    std::int64_t top_k = 0;    // below 1: off
    double top_p = 1.0;
    double min_p = 0.0;

    bool greedy() const { return temperature == 0.0 || top_k == 1; }
};

// Memory of one thread, reused row after row.
struct SamplingScratch {
    std::vector<float> adjusted, maxima, weights, logits;
    std::vector<double> masses;
    Candidates candidates;
};

class SequenceSampler {
public:
    SequenceSampler(SamplingRules rules, std::uint64_t seed, std::uint64_t sequence_index, LogitAdjustment adjustment);

    // The sequence has grown by this token.
    void append(std::int64_t token);

    std::int64_t num_output_tokens() const { return num_output_tokens_; }
    const LogitAdjustment& adjustment() const { return adjustment_; }

    // The next token, or kNonFinite. Ties go to the lowest id. The row is not changed; nothing but it, what was appended
    // and the constructor's arguments has influence.
    std::int64_t sample(const float* row, std::int64_t num_tokens, const RowKernels& kernels,
                        SamplingScratch& scratch) const;

    // What is left to draw from, ascending by token; false: the whole vocabulary, with `scratch.weights` and `masses`.
    bool truncate(const RowScan& scan, const RowKernels& kernels, SamplingScratch& scratch) const;

private:
    const float* adjust(const float* row, std::int64_t num_tokens, SamplingScratch& scratch) const;
    float temperature() const;
    void take_mass(const RowScan& scan, double wanted, double total, const RowKernels& kernels,
                   SamplingScratch& scratch) const;
    void weigh_candidates(const RowScan& scan, const RowKernels& kernels, SamplingScratch& scratch) const;
    double weigh_all(const RowScan& scan, const RowKernels& kernels, SamplingScratch& scratch) const;

    SamplingRules rules_;
    std::uint64_t seed_, sequence_index_;
    LogitAdjustment adjustment_;
    std::int64_t num_output_tokens_ = 0;
};

}  // namespace octavo
