#include "program/attention_plan.hpp"

#include <algorithm>

#include "kernels/rows.hpp"

namespace octavo {
namespace {

PlannedItem item_of(std::int64_t chunk_index, const ChunkView& chunk, std::int64_t offset, std::int64_t window) {
    PlannedItem item;
    item.chunk = chunk_index;
    item.first_row = chunk.first_row + offset;
    item.num_queries = std::min(kMostQueries, chunk.num_rows - offset);
    item.first_position = chunk.start + offset;
    const std::int64_t first_seen = window == 0 ? 0 : std::max<std::int64_t>(0, item.first_position - window + 1);
    const std::int64_t last_seen = item.first_position + item.num_queries - 1;
    item.first_part = first_seen / kKeyPart;
    item.num_parts = last_seen / kKeyPart - item.first_part + 1;
    return item;
}

void split_into_parts(AttentionPlan& plan) {
    for (std::size_t index = 0; index < plan.items.size(); ++index) {
        plan.items[index].first_split = static_cast<std::int64_t>(plan.item_of_part.size());
        plan.item_of_part.insert(plan.item_of_part.end(), static_cast<std::size_t>(plan.items[index].num_parts),
                                 static_cast<std::int32_t>(index));
    }
}

void make_plan(AttentionPlan& plan, const StepView& step, std::int64_t num_kv_heads, int num_threads) {
    plan.items.clear();
    plan.item_of_part.clear();
    std::int64_t num_parts = 0, most_queries = 0;
    for (std::size_t index = 0; index < step.chunks.size(); ++index) {
        const ChunkView& chunk = step.chunks[index];
        for (std::int64_t offset = 0; offset < chunk.num_rows; offset += kMostQueries) {
            plan.items.push_back(item_of(static_cast<std::int64_t>(index), chunk, offset, plan.window));
            num_parts += plan.items.back().num_parts;
            most_queries = std::max(most_queries, plan.items.back().num_queries);
        }
    }
    // The longest items first: the short ones fill the gaps at the end.
    std::stable_sort(plan.items.begin(), plan.items.end(), [](const PlannedItem& a, const PlannedItem& b) {
        return a.first_position + a.num_queries > b.first_position + b.num_queries;
    });
    const std::int64_t num_items = static_cast<std::int64_t>(plan.items.size());
    plan.split = num_threads > 1 && num_parts > num_items && most_queries <= kMostSplitQueries &&
                 num_parts * num_kv_heads <= kMostSplitTasks && num_items * num_kv_heads < 8 * num_threads;
    if (plan.split) split_into_parts(plan);
}

}  // namespace

std::int64_t AttentionPlans::add_window(std::int64_t window) {
    for (std::size_t index = 0; index < plans_.size(); ++index) {
        if (plans_[index].window == window) return static_cast<std::int64_t>(index);
    }
    plans_.emplace_back().window = window;
    return static_cast<std::int64_t>(plans_.size()) - 1;
}

void AttentionPlans::allocate(std::int64_t part_floats, std::int64_t most_kv_heads) {
    part_floats_ = round_up(part_floats, 16);
    most_kv_heads_ = most_kv_heads;
    const auto num_parts = static_cast<std::size_t>(kMostSplitTasks + most_kv_heads);
    memory_ = AlignedMemory(num_parts * static_cast<std::size_t>(part_floats_) * sizeof(float));
    num_finished_ = std::make_unique<std::atomic<std::int32_t>[]>(num_parts);
}

void AttentionPlans::make(const StepView& step, int num_threads) {
    for (AttentionPlan& plan : plans_) make_plan(plan, step, most_kv_heads_, num_threads);
}

}  // namespace octavo
