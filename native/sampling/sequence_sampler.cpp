#include "sampling/sequence_sampler.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "sampling/uniform.hpp"

namespace octavo {
namespace {

// The inverse of the cumulative distribution in ascending order of tokens. Past the end (the product rounded up to the
// whole mass) comes the last token that has any.
std::int64_t draw_from(const Candidates& kept, double share) {
    const double point = share * mass_of(kept);
    double mass = 0.0;
    std::int64_t last = kept.front().token;
    for (const Candidate& each : kept) {
        if (each.weight <= 0.0f) continue;
        last = each.token;
        mass += static_cast<double>(each.weight);
        if (mass > point) break;
    }
    return last;
}

// The same over the whole vocabulary: first the block, then the token in it.
std::int64_t draw_from_all(const SamplingScratch& scratch, std::int64_t num_tokens, double total, double share) {
    const double point = share * total;
    double before = 0.0;
    std::int64_t chosen = 0;
    for (std::int64_t block = 0; block < num_scan_blocks(num_tokens); ++block) {
        const double mass = scratch.masses[static_cast<std::size_t>(block)];
        if (mass <= 0.0) continue;
        chosen = block;
        if (before + mass > point) break;
        before += mass;
    }
    const std::int64_t first = chosen * kScanBlock, end = std::min(first + kScanBlock, num_tokens);
    std::int64_t last = first;
    for (std::int64_t token = first; token < end; ++token) {
        const float weight = scratch.weights[static_cast<std::size_t>(token)];
        if (weight <= 0.0f) continue;
        last = token;
        before += static_cast<double>(weight);
        if (before > point) break;
    }
    return last;
}

// The highest of some levels at which all that is at least as heavy has `mass`; 0 for none.
double level_with_mass(const std::vector<float>& weights, double mass, const RowKernels& kernels) {
    static constexpr float levels[][kNumMassLevels] = {{0x1p-3f, 0x1p-6f, 0x1p-9f, 0x1p-12f},
                                                       {0x1p-14f, 0x1p-16f, 0x1p-18f, 0x1p-20f}};
    for (const auto& round : levels) {
        double masses[kNumMassLevels];
        kernels.mass_from_levels(weights.data(), static_cast<std::int64_t>(weights.size()), round, masses);
        for (int j = 0; j < kNumMassLevels; ++j) {
            if (masses[j] >= mass) return static_cast<double>(round[j]);
        }
    }
    return 0.0;
}

}  // namespace

SequenceSampler::SequenceSampler(SamplingRules rules, std::uint64_t seed, std::uint64_t sequence_index,
                                 LogitAdjustment adjustment)
    : rules_(rules), seed_(seed), sequence_index_(sequence_index), adjustment_(std::move(adjustment)) {}

void SequenceSampler::append(std::int64_t token) {
    ++num_output_tokens_;
    adjustment_.count(token);
}

std::int64_t SequenceSampler::sample(const float* row, std::int64_t num_tokens, const RowKernels& kernels,
                                     SamplingScratch& scratch) const {
    const RowScan scan = scan_row(kernels, adjust(row, num_tokens, scratch), num_tokens, scratch.maxima);
    if (!scan.is_finite) return kNonFinite;
    if (rules_.greedy()) return scan.first_highest();
    const double share = uniform(seed_, sequence_index_, static_cast<std::uint64_t>(num_output_tokens_));
    if (truncate(scan, kernels, scratch)) return draw_from(scratch.candidates, share);
    double total = 0.0;
    for (const double mass : scratch.masses) total += mass;
    return draw_from_all(scratch, num_tokens, total, share);
}

bool SequenceSampler::truncate(const RowScan& scan, const RowKernels& kernels, SamplingScratch& scratch) const {
    Candidates& kept = scratch.candidates;
    if (rules_.top_k > 0 && rules_.top_k < scan.num_tokens) {
        take_highest(scan, rules_.top_k, kept);
        weigh_candidates(scan, kernels, scratch);
        if (rules_.min_p > 0.0) keep_weights_from(rules_.min_p, kept);
    } else {
        const double total = weigh_all(scan, kernels, scratch);
        if (rules_.min_p > 0.0) {
            take_weights_from(scan, scratch.weights.data(), temperature(), rules_.min_p, kept);
        } else {
            if (rules_.top_p < 1.0) take_mass(scan, rules_.top_p * total, total, kernels, scratch);
            return rules_.top_p < 1.0;
        }
    }
    if (rules_.top_p < 1.0) keep_mass(rules_.top_p * mass_of(kept), kept);
    return true;
}

// Top-p over the whole vocabulary: first all tokens down to a weight at which the mass is surely there, then the cut.
void SequenceSampler::take_mass(const RowScan& scan, double wanted, double total, const RowKernels& kernels,
                                SamplingScratch& scratch) const {
    // What is lighter than this has, all together, not the mass that top-p leaves out.
    const double lightest = 0.999 * (total - wanted) / static_cast<double>(scan.num_tokens);
    const double lowest = level_with_mass(scratch.weights, 1.001 * wanted, kernels);
    take_weights_from(scan, scratch.weights.data(), temperature(), std::max(lowest, lightest), scratch.candidates);
    keep_mass(wanted, scratch.candidates);
}

const float* SequenceSampler::adjust(const float* row, std::int64_t num_tokens, SamplingScratch& scratch) const {
    if (!adjustment_.applies()) return row;
    scratch.adjusted.assign(row, row + num_tokens);
    adjustment_.apply(scratch.adjusted.data());
    return scratch.adjusted.data();
}

// One below the smallest normal number gives the distribution of that one: any gap between two logits divided by it is
// far outside the range of exp.
float SequenceSampler::temperature() const {
    return std::max(static_cast<float>(rules_.temperature), std::numeric_limits<float>::min());
}

void SequenceSampler::weigh_candidates(const RowScan& scan, const RowKernels& kernels, SamplingScratch& scratch) const {
    Candidates& kept = scratch.candidates;
    scratch.logits.resize(kept.size());
    scratch.weights.resize(kept.size());
    for (std::size_t i = 0; i < kept.size(); ++i) scratch.logits[i] = kept[i].logit;
    const auto count = static_cast<std::int64_t>(kept.size());
    scratch.masses.resize(static_cast<std::size_t>(num_scan_blocks(count)));
    kernels.weigh(scratch.logits.data(), count, scan.highest, temperature(), scratch.weights.data(),
                  scratch.masses.data());
    for (std::size_t i = 0; i < kept.size(); ++i) kept[i].weight = scratch.weights[i];
}

double SequenceSampler::weigh_all(const RowScan& scan, const RowKernels& kernels, SamplingScratch& scratch) const {
    scratch.weights.resize(static_cast<std::size_t>(scan.num_tokens));
    scratch.masses.resize(static_cast<std::size_t>(scan.num_blocks()));
    kernels.weigh(scan.logits, scan.num_tokens, scan.highest, temperature(), scratch.weights.data(),
                  scratch.masses.data());
    double total = 0.0;
    for (const double mass : scratch.masses) total += mass;
    return total;
}

}  // namespace octavo
