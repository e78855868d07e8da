// Cutting a step's attention into items, once a step for all layers of one window (kernels/attention_item.hpp).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/attention_item.hpp"
#include "program/aligned_memory.hpp"
#include "program/step_view.hpp"

namespace octavo {

// Queries of an item. Larger ones read each key tile less often.
constexpr std::int64_t kMostQueries = 16;
// Parts are computed apart for decodes and other short chunks only: their results must wait in memory.
constexpr std::int64_t kMostSplitQueries = 4, kMostSplitTasks = 1024;

struct PlannedItem {
    std::int64_t chunk = 0, first_row = 0, num_queries = 0, first_position = 0;
    std::int64_t first_part = 0, num_parts = 0;
    std::int64_t first_split = 0;  // place of its first part among all parts, where parts are computed apart
};

// With `split`, a task is one part of one item, otherwise a whole item.
struct AttentionPlan {
    std::int64_t window = 0;
    bool split = false;
    std::vector<PlannedItem> items;
    std::vector<std::int32_t> item_of_part;  // filled where split

    std::int64_t num_tasks() const { return static_cast<std::int64_t>(split ? item_of_part.size() : items.size()); }
};

// The plans of a step, one for each window in use.
class AttentionPlans {
public:
    // Memory for parts that are computed apart. `part_floats` is what one part of kMostSplitQueries queries and one kv
    // head takes at most.
    void allocate(std::int64_t part_floats, std::int64_t most_kv_heads);
    std::int64_t num_bytes() const { return static_cast<std::int64_t>(memory_.num_bytes()); }
    float* part_memory(std::int64_t place, std::int64_t kv_head) const {
        return reinterpret_cast<float*>(memory_.data()) + (place * most_kv_heads_ + kv_head) * part_floats_;
    }
    // How many parts are finished of the item whose first part is at `place`; 0 between layers.
    std::atomic<std::int32_t>& num_finished(std::int64_t place, std::int64_t kv_head) const {
        return num_finished_[static_cast<std::size_t>(place * most_kv_heads_ + kv_head)];
    }
    // Returns the plan's index; equal windows share one.
    std::int64_t add_window(std::int64_t window);
    // Items are split into parts only where there are too few of them for the threads.
    void make(const StepView& step, int num_threads);
    const AttentionPlan& operator[](std::int64_t index) const { return plans_[static_cast<std::size_t>(index)]; }

private:
    std::vector<AttentionPlan> plans_;
    std::int64_t part_floats_ = 0, most_kv_heads_ = 0;
    AlignedMemory memory_;
    std::unique_ptr<std::atomic<std::int32_t>[]> num_finished_;
};

}  // namespace octavo
