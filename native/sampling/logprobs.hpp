// Log-probabilities of raw logits: before bias, penalties and temperature, as OpenAI and vLLM report them.
#pragma once

#include <cstdint>
#include <vector>

#include "sampling/row_kernels.hpp"
#include "sampling/sequence_sampler.hpp"

namespace octavo {

struct TokenLogprob {
    std::int64_t token;
    std::int64_t rank;  // from 1; ties by lowest id
    float logprob;
};

// The chosen token's, then the `count` most likely ones' (the chosen one again if it is among them). Empty for a row
// that holds NaN or whose highest logit is infinite.
std::vector<TokenLogprob> row_logprobs(const float* row, std::int64_t num_tokens, std::int64_t chosen,
                                       std::int64_t count, const RowKernels& kernels, SamplingScratch& scratch);

}  // namespace octavo
