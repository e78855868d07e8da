// Queries, keys and values of one layer in one phase: products, head norms, rotation, keys and values into their blocks.
#pragma once

#include <memory>
#include <vector>

#include "program/instructions/linear.hpp"

namespace octavo {

// Empty weight: no norm.
struct HeadNormWeights {
    std::vector<float> weight;
    float eps = 0.0f;
};

struct QkvProjection {
    BiasedMatrix q, k, v;
    HeadNormWeights q_norm, k_norm;
    std::int64_t rope = -1;  // -1: none
    std::int64_t layer = 0;
    AttentionShape shape;
};

std::unique_ptr<Instruction> make_project_qkv(std::string name, Value x, QkvProjection projection, Value q_out);

}  // namespace octavo
