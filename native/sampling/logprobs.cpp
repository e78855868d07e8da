#include "sampling/logprobs.hpp"

#include <algorithm>
#include <cmath>

namespace octavo {
namespace {

double log_of_sum(const RowScan& scan, const RowKernels& kernels, SamplingScratch& scratch) {
    scratch.weights.resize(static_cast<std::size_t>(scan.num_tokens));
    scratch.masses.resize(static_cast<std::size_t>(scan.num_blocks()));
    kernels.weigh(scan.logits, scan.num_tokens, scan.highest, 1.0f, scratch.weights.data(), scratch.masses.data());
    double total = 0.0;
    for (const double mass : scratch.masses) total += mass;
    return std::log(total);
}

}  // namespace

std::vector<TokenLogprob> row_logprobs(const float* row, std::int64_t num_tokens, std::int64_t chosen,
                                       std::int64_t count, const RowKernels& kernels, SamplingScratch& scratch) {
    const RowScan scan = scan_row(kernels, row, num_tokens, scratch.maxima);
    if (!scan.is_finite) return {};
    const double log_sum = log_of_sum(scan, kernels, scratch);
    const auto logprob_of = [&](float logit) {
        return static_cast<float>(static_cast<double>(logit) - static_cast<double>(scan.highest) - log_sum);
    };
    const std::int64_t rank =
        1 + kernels.count_greater(row, num_tokens, row[chosen]) + kernels.count_equal(row, chosen, row[chosen]);
    std::vector<TokenLogprob> found{{chosen, rank, logprob_of(row[chosen])}};
    if (count == 0) return found;
    Candidates& best = scratch.candidates;
    take_highest(scan, std::min(count, num_tokens), best);
    std::stable_sort(best.begin(), best.end(),
                     [](const Candidate& a, const Candidate& b) { return a.logit > b.logit; });
    for (const Candidate& each : best) {
        found.push_back({each.token, static_cast<std::int64_t>(found.size()), logprob_of(each.logit)});
    }
    return found;
}

}  // namespace octavo
