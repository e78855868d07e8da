// A mixture of experts (octavo.ops.base.Ops.experts says what is computed), as phases over routed rows:
//
//     route     each row: router, softmax, choice            group    rows by expert (one task)
//     gather    routed rows of the input, quantized          gate/up  each expert over its own rows
//     (round    hidden features, if that takes whole rows)
//     down      each expert over its own rows                combine  each row: its experts' results by ascending id
#pragma once

#include <memory>
#include <vector>

#include "program/instructions/linear.hpp"

namespace octavo {

struct ExpertMlp {
    BiasedMatrix gate, up, down;
};

struct ExpertsSpec {
    Matrix router;  // dense
    std::vector<ExpertMlp> mlps;
    std::int64_t experts_per_token = 1;
    bool renormalize = false;
    ActivationKind activation = ActivationKind::silu;

    std::int64_t num_experts() const { return static_cast<std::int64_t>(mlps.size()); }
};

// Values of the routed domain: the input, the hidden features as they are made and as they are read (the same value,
// or another in a slot of its own), and the results of each routed row.
struct RoutedValues {
    Value x, hidden, rounded_hidden, y;
};

std::vector<std::unique_ptr<Instruction>> make_experts(const std::string& name, Value x, ExpertsSpec spec,
                                                       RoutedValues routed, Value out);

}  // namespace octavo
