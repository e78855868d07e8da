// What changes a sequence's logits before they are compared: bias, forbidden ends, penalties. All sparse: the cost grows
// with the tokens that are touched, never with the vocabulary.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace octavo {

struct Penalties {
    float repetition = 1.0f;  // CTRL (Keskar et al. 2019, section 4.1): prompt and output
    float presence = 0.0f;    // these two as OpenAI has them: output only
    float frequency = 0.0f;

    bool any() const { return repetition != 1.0f || presence != 0.0f || frequency != 0.0f; }
};

struct LogitBias {
    std::int64_t token;
    float value;
};

class LogitAdjustment {
public:
    // `banned` are out of reach until `min_tokens` tokens were said.
    LogitAdjustment(Penalties penalties, const std::vector<std::int64_t>& prompt, std::vector<LogitBias> bias,
                    std::vector<std::int64_t> banned, std::int64_t min_tokens);

    // One more output token.
    void count(std::int64_t token);

    bool applies() const { return !said_.empty() || !bias_.empty() || bans(); }

    // The highest token id that is touched, -1 for none.
    std::int64_t highest_token() const { return highest_token_; }

    // In this order: bias, bans, penalties.
    void apply(float* logits) const;

private:
    struct Said {
        std::int64_t token;
        float num_outputs;
    };

    bool bans() const { return num_output_tokens_ < min_tokens_ && !banned_.empty(); }
    std::size_t slot_of(std::int64_t token);
    float penalized(float logit, float num_outputs) const;

    Penalties penalties_;
    std::vector<LogitBias> bias_;
    std::vector<std::int64_t> banned_;
    std::int64_t min_tokens_;
    std::int64_t num_output_tokens_ = 0;
    std::int64_t highest_token_ = -1;
    std::vector<Said> said_;  // distinct tokens that a penalty touches
    std::unordered_map<std::int64_t, std::size_t> slots_;
};

}  // namespace octavo
