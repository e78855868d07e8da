// Which experts each row of a step uses, and the rows of each expert. One layer's at a time: the next overwrites it.
//
//     rows      0: experts 1, 4    1: experts 0, 1          (experts_per_token = 2, ids ascending)
//     routed    0: row 1 (expert 0)   1: row 0 (expert 1)   2: row 1 (expert 1)   3: row 0 (expert 4)
//     first_of  0, 1, 3, 3, 3, 4
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace octavo {

class Routing {
public:
    void allocate(std::int64_t max_rows, std::int64_t most_experts, std::int64_t most_per_token) {
        const auto entries = static_cast<std::size_t>(max_rows * most_per_token);
        expert_.resize(entries);
        weight_.resize(entries);
        place_.resize(entries);
        row_.resize(entries);
        first_of_.resize(static_cast<std::size_t>(most_experts) + 1);
    }

    // Entry `slot` of a row, slots in ascending order of expert.
    std::int32_t& expert(std::int64_t row, std::int64_t slot, std::int64_t per_token) {
        return expert_[at(row, slot, per_token)];
    }
    float& weight(std::int64_t row, std::int64_t slot, std::int64_t per_token) {
        return weight_[at(row, slot, per_token)];
    }
    // Where the entry stands among the routed rows.
    std::int64_t place(std::int64_t row, std::int64_t slot, std::int64_t per_token) const {
        return place_[at(row, slot, per_token)];
    }
    std::int64_t row_at(std::int64_t place) const { return row_[static_cast<std::size_t>(place)]; }
    std::int64_t first_of(std::int64_t expert) const { return first_of_[static_cast<std::size_t>(expert)]; }

    // A counting sort of all entries by expert; rows stay in order.
    void group(std::int64_t num_rows, std::int64_t num_experts, std::int64_t per_token) {
        const std::int64_t num_entries = num_rows * per_token;
        std::fill(first_of_.begin(), first_of_.end(), 0);
        for (std::int64_t i = 0; i < num_entries; ++i)
            ++first_of_[static_cast<std::size_t>(expert_[static_cast<std::size_t>(i)]) + 1];
        for (std::int64_t e = 0; e < num_experts; ++e)
            first_of_[static_cast<std::size_t>(e) + 1] += first_of_[static_cast<std::size_t>(e)];
        next_.assign(first_of_.begin(), first_of_.end());
        for (std::int64_t i = 0; i < num_entries; ++i) {
            const std::int32_t place = next_[static_cast<std::size_t>(expert_[static_cast<std::size_t>(i)])]++;
            place_[static_cast<std::size_t>(i)] = place;
            row_[static_cast<std::size_t>(place)] = static_cast<std::int32_t>(i / per_token);
        }
    }

private:
    static std::size_t at(std::int64_t row, std::int64_t slot, std::int64_t per_token) {
        return static_cast<std::size_t>(row * per_token + slot);
    }

    std::vector<std::int32_t> expert_, place_, row_, first_of_, next_;
    std::vector<float> weight_;
};

}  // namespace octavo
