// The tokens a draw is made from: all that top-k, min-p and top-p leave, found without sorting the vocabulary.
//
// Every filter keeps a set "highest logit first, ties by lowest id", so the sets are nested and the order of filters
// does not matter, except that top-p counts the mass that the others left.
#pragma once

#include <cstdint>
#include <vector>

#include "sampling/row_scan.hpp"

namespace octavo {

struct Candidate {
    std::int32_t token;
    float logit;
    float weight;
};

// Ascending by token.
using Candidates = std::vector<Candidate>;

// The `count` highest (1 <= count <= tokens); weights are left 0.
void take_highest(const RowScan& scan, std::int64_t count, Candidates& kept);

// All whose weight is at least `lowest` > 0; weights belong to `temperature`.
void take_weights_from(const RowScan& scan, const float* weights, float temperature, double lowest, Candidates& kept);

// Keep those whose weight is at least `lowest`.
void keep_weights_from(double lowest, Candidates& kept);

// Keep the smallest set of highest ones whose mass reaches `wanted`; all if none does.
void keep_mass(double wanted, Candidates& kept);

double mass_of(const Candidates& kept);

}  // namespace octavo
