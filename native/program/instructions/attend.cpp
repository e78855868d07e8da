#include "program/instructions/attend.hpp"

#include <atomic>

#include "program/instructions/rowwise.hpp"

namespace octavo {
namespace {

// Floats that the part of one item takes: outputs, maxima, totals.
std::int64_t part_floats(std::int64_t num_rows, std::int64_t head_dim) { return num_rows * (head_dim + 2); }

AttentionPart part_at(float* memory, std::int64_t num_rows, std::int64_t head_dim) {
    return {memory, memory + num_rows * head_dim, memory + num_rows * (head_dim + 1)};
}

class Attend final : public Instruction {
public:
    Attend(std::string name, Value q, std::int64_t layer, AttentionShape shape, std::int64_t plan, Value out)
        : Instruction(std::move(name), RowOutput{out}.kind("attention")),
          q_(q),
          layer_(layer),
          shape_(shape),
          plan_(plan),
          out_{out} {}

    std::int64_t num_tasks(const Context& context, const StepView&) const override {
        return (*context.plans)[plan_].num_tasks() * shape_.num_kv_heads;
    }

    void run(const Context& context, const StepView& step, std::int64_t task, const Worker& worker) const override {
        const AttentionPlan& plan = (*context.plans)[plan_];
        const std::int64_t place = task / shape_.num_kv_heads, kv_head = task % shape_.num_kv_heads;
        if (plan.split) {
            run_part(context, step, plan, place, kv_head, worker);
        } else {
            run_item(context, step, plan.items[static_cast<std::size_t>(place)], kv_head, worker);
        }
    }

    // Keys and values are read once for each sequence, multiplied by each of its queries.
    Cost cost(const Context& context, const StepShape& shape) const override {
        const KvLayer& layer = context.kv->layer(layer_);
        const std::int64_t rows = shape.rows_per_sequence(), length = shape.context + rows;
        const std::int64_t window = shape_.window ? shape_.window : length;
        std::int64_t num_scores = 0;
        for (std::int64_t position = shape.context; position < length; ++position) {
            num_scores += std::min(position + 1, window);
        }
        const std::int64_t num_keys = std::min(length, window + rows - 1);
        const auto sequences = static_cast<double>(shape.num_sequences);
        const std::int64_t key_bytes = 2 * shape_.head_dim * shape_.num_kv_heads * element_bytes(layer.format);
        return {sequences * static_cast<double>(num_keys * key_bytes),
                sequences * static_cast<double>(4 * num_scores * shape_.head_dim * shape_.num_heads)};
    }

private:
    AttentionItem item_of(const Context& context, const StepView& step, const PlannedItem& planned,
                          std::int64_t kv_head) const {
        const Rows q = context.values->rows(q_);
        AttentionItem item;
        item.q = q.row(planned.first_row) + kv_head * shape_.heads_per_kv() * shape_.head_dim;
        item.q_stride = q.stride;
        item.num_queries = planned.num_queries;
        item.first_position = planned.first_position;
        item.kv_head = kv_head;
        item.block_table = step.chunks[static_cast<std::size_t>(planned.chunk)].block_table;
        return item;
    }

    void attend_part(const Context& context, const AttentionItem& item, std::int64_t part, const AttentionPart& out,
                     const Worker& worker) const {
        const std::int64_t last_seen = item.first_position + item.num_queries - 1;
        const std::int64_t first_seen =
            shape_.window == 0 ? 0 : std::max<std::int64_t>(0, item.first_position - shape_.window + 1);
        const std::int64_t first = std::max(part * kKeyPart, first_seen / kKeyTile * kKeyTile);
        const std::int64_t end = std::min((part + 1) * kKeyPart, last_seen + 1);
        context.kernels->attend_part(shape_, context.kv->layer(layer_), item, first, end, out, worker.kernel_scratch);
    }

    void run_item(const Context& context, const StepView& step, const PlannedItem& planned, std::int64_t kv_head,
                  const Worker& worker) const {
        const AttentionItem item = item_of(context, step, planned, kv_head);
        const std::int64_t num_rows = planned.num_queries * shape_.heads_per_kv();
        float* memory = worker.floats;
        const AttentionPart sum = part_at(memory, num_rows, shape_.head_dim);
        const AttentionPart next = part_at(memory + part_floats(num_rows, shape_.head_dim), num_rows, shape_.head_dim);
        for (std::int64_t i = 0; i < planned.num_parts; ++i) {
            attend_part(context, item, planned.first_part + i, i == 0 ? sum : next, worker);
            if (i > 0) context.kernels->fold_part(shape_.head_dim, num_rows, sum, next);
        }
        finish(context, planned, kv_head, sum, memory + 2 * part_floats(num_rows, shape_.head_dim));
    }

    // Each part is computed apart; whoever finishes an item's last one joins them, in order.
    void run_part(const Context& context, const StepView& step, const AttentionPlan& plan, std::int64_t place,
                  std::int64_t kv_head, const Worker& worker) const {
        const PlannedItem& planned =
            plan.items[static_cast<std::size_t>(plan.item_of_part[static_cast<std::size_t>(place)])];
        const std::int64_t num_rows = planned.num_queries * shape_.heads_per_kv();
        const std::int64_t part = place - planned.first_split;
        attend_part(context, item_of(context, step, planned, kv_head), planned.first_part + part,
                    split_part(context, place, kv_head, num_rows), worker);
        std::atomic<std::int32_t>& finished = context.plans->num_finished(planned.first_split, kv_head);
        if (finished.fetch_add(1, std::memory_order_acq_rel) + 1 < planned.num_parts) return;
        finished.store(0, std::memory_order_relaxed);  // for the next layer
        const AttentionPart sum = split_part(context, planned.first_split, kv_head, num_rows);
        for (std::int64_t i = 1; i < planned.num_parts; ++i) {
            context.kernels->fold_part(shape_.head_dim, num_rows, sum,
                                       split_part(context, planned.first_split + i, kv_head, num_rows));
        }
        finish(context, planned, kv_head, sum, worker.floats);
    }

    AttentionPart split_part(const Context& context, std::int64_t place, std::int64_t kv_head,
                             std::int64_t num_rows) const {
        return part_at(context.plans->part_memory(place, kv_head), num_rows, shape_.head_dim);
    }

    void finish(const Context& context, const PlannedItem& planned, std::int64_t kv_head, const AttentionPart& sum,
                float* spare) const {
        const std::int64_t features = shape_.heads_per_kv() * shape_.head_dim, first = kv_head * features;
        if (!out_.value.is_quantized()) {
            const Rows y = context.values->rows(out_.value).from(planned.first_row, first);
            context.kernels->finish_part(shape_, sum, planned.num_queries, y.data, y.stride);
            for (std::int64_t query = 0; query < planned.num_queries; ++query) {
                out_.finish(context, planned.first_row + query, y.row(query), features, first);
            }
            return;
        }
        context.kernels->finish_part(shape_, sum, planned.num_queries, spare, features);
        for (std::int64_t query = 0; query < planned.num_queries; ++query) {
            out_.finish(context, planned.first_row + query, spare + query * features, features, first);
        }
    }

    Value q_;
    std::int64_t layer_;
    AttentionShape shape_;
    std::int64_t plan_;
    RowOutput out_;
};

}  // namespace

std::unique_ptr<Instruction> make_attend(std::string name, Value q, std::int64_t layer, AttentionShape shape,
                                         std::int64_t plan, Value out) {
    return std::make_unique<Attend>(std::move(name), q, layer, shape, plan, out);
}

}  // namespace octavo
