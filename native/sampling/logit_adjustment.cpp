#include "sampling/logit_adjustment.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace octavo {

LogitAdjustment::LogitAdjustment(Penalties penalties, const std::vector<std::int64_t>& prompt,
                                 std::vector<LogitBias> bias, std::vector<std::int64_t> banned, std::int64_t min_tokens)
    : penalties_(penalties), bias_(std::move(bias)), banned_(std::move(banned)), min_tokens_(min_tokens) {
    for (const LogitBias& each : bias_) highest_token_ = std::max(highest_token_, each.token);
    for (const std::int64_t token : banned_) highest_token_ = std::max(highest_token_, token);
    if (penalties_.repetition == 1.0f) return;
    for (const std::int64_t token : prompt) slot_of(token);
}

void LogitAdjustment::count(std::int64_t token) {
    ++num_output_tokens_;
    if (penalties_.any()) said_[slot_of(token)].num_outputs += 1.0f;
}

void LogitAdjustment::apply(float* logits) const {
    for (const LogitBias& each : bias_) logits[each.token] += each.value;
    if (bans()) {
        for (const std::int64_t token : banned_) logits[token] = -std::numeric_limits<float>::infinity();
    }
    for (const Said& each : said_) logits[each.token] = penalized(logits[each.token], each.num_outputs);
}

std::size_t LogitAdjustment::slot_of(std::int64_t token) {
    const auto [place, is_new] = slots_.try_emplace(token, said_.size());
    if (is_new) {
        said_.push_back({token, 0.0f});
        highest_token_ = std::max(highest_token_, token);
    }
    return place->second;
}

float LogitAdjustment::penalized(float logit, float num_outputs) const {
    if (penalties_.repetition != 1.0f) {
        logit = logit > 0.0f ? logit / penalties_.repetition : logit * penalties_.repetition;
    }
    logit -= penalties_.frequency * num_outputs;
    return num_outputs > 0.0f ? logit - penalties_.presence : logit;
}

}  // namespace octavo
