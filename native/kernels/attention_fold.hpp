// Joining the parts of attention, and the division at the end.
#pragma once

#include <cstdint>

#include "kernels/elementwise.hpp"
#include "kernels/kernels.hpp"

namespace octavo {
namespace {

// output = output * before + other * after, where the factors bring both to one maximum.
template <typename L>
void fold_row(std::int64_t head_dim, float before, float after, float* output, const float* other) {
    const typename L::F old_factor = L::set(before), new_factor = L::set(after);
    each_lanes(head_dim, [&](std::int64_t i, int count) {
        const typename L::F added = L::mul(load_lanes<L>(other + i, count), new_factor);
        store_lanes<L>(output + i, L::fma(load_lanes<L>(output + i, count), old_factor, added), count);
    });
}

// A part in which a row saw nothing changes none of its bits, whichever side it stands on: queries that are computed
// together need not see the same parts.
template <typename L>
void fold_part(std::int64_t head_dim, std::int64_t num_rows, const AttentionPart& into, const AttentionPart& part) {
    for (std::int64_t row = 0; row < num_rows; ++row) {
        if (part.total[row] == 0.0f) continue;
        float* const output = into.output + row * head_dim;
        const float* const other = part.output + row * head_dim;
        if (into.total[row] == 0.0f) {
            for (std::int64_t i = 0; i < head_dim; ++i) output[i] = other[i];
            into.total[row] = part.total[row];
            into.highest[row] = part.highest[row];
            continue;
        }
        const float highest = into.highest[row] > part.highest[row] ? into.highest[row] : part.highest[row];
        float pair[kLanes] = {into.highest[row] - highest, part.highest[row] - highest};
        L::store(pair, exp<L>(L::load(pair)));
        fold_row<L>(head_dim, pair[0], pair[1], output, other);
        const float added = part.total[row] * pair[1];
        into.total[row] = into.total[row] * pair[0] + added;
        into.highest[row] = highest;
    }
}

template <typename L>
void finish_part(const AttentionShape& shape, const AttentionPart& part, std::int64_t num_queries, float* y,
                 std::int64_t y_stride) {
    const std::int64_t heads = shape.heads_per_kv();
    for (std::int64_t row = 0; row < num_queries * heads; ++row) {
        const typename L::F total = L::set(part.total[row]);
        const float* const output = part.output + row * shape.head_dim;
        float* const to = y + row / heads * y_stride + row % heads * shape.head_dim;
        each_lanes(shape.head_dim, [&](std::int64_t i, int count) {
            store_lanes<L>(to + i, L::div(load_lanes<L>(output + i, count), total), count);
        });
    }
}

}  // namespace
}  // namespace octavo
