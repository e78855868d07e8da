#include "program/instructions/project_qkv.hpp"

#include <numeric>

namespace octavo {
namespace {

class ProjectQkv final : public Instruction {
public:
    ProjectQkv(std::string name, Value x, QkvProjection projection, Value q_out)
        : Instruction(std::move(name), "qkv + rope + kv write"),
          x_(x),
          p_(std::move(projection)),
          q_out_(q_out),
          align_(std::lcm(p_.shape.head_dim, kTileOutputs) / kTileOutputs) {}

    std::int64_t num_tasks(const Context& context, const StepView& step) const override {
        return cut(context, step, p_.q).num_tasks() + 2 * cut(context, step, p_.k).num_tasks();
    }

    void run(const Context& context, const StepView& step, std::int64_t task, const Worker& worker) const override {
        const std::int64_t q_tasks = cut(context, step, p_.q).num_tasks(),
                           k_tasks = cut(context, step, p_.k).num_tasks();
        if (task < q_tasks) {
            run_queries(context, step, task, worker);
        } else if (task < q_tasks + k_tasks) {
            run_keys(context, step, task - q_tasks, worker);
        } else {
            run_values(context, step, task - q_tasks - k_tasks, worker);
        }
    }

    Cost cost(const Context&, const StepShape& shape) const override {
        return linear_cost({&p_.q.matrix, &p_.k.matrix, &p_.v.matrix}, static_cast<double>(rows_of(shape, x_.domain)));
    }
    std::string weights() const override {
        return describe(p_.q.matrix) + ", " + describe(p_.k.matrix) + ", " + describe(p_.v.matrix) + describe(x_.form);
    }

private:
    // Tiles are cut where heads end.
    LinearCut cut(const Context& context, const StepView& step, const BiasedMatrix& matrix) const {
        return LinearCut::of(matrix.matrix.tiles(), align_, step.num_rows(), context.num_threads);
    }

    void run_queries(const Context& context, const StepView& step, std::int64_t task, const Worker& worker) const {
        const LinearCut c = cut(context, step, p_.q);
        const Rows y = context.values->rows(q_out_).from(c.first_row(task), c.first_tile(task) * kTileOutputs);
        const std::int64_t features = project(context, c, task, p_.q, y, worker);
        for (std::int64_t row = 0; row < c.end_row(task) - c.first_row(task); ++row) {
            const std::int64_t position = step.positions[static_cast<std::size_t>(c.first_row(task) + row)];
            for (std::int64_t first = 0; first < features; first += p_.shape.head_dim) {
                norm_and_rotate(context, p_.q_norm, position, y.row(row) + first);
            }
        }
    }

    void run_keys(const Context& context, const StepView& step, std::int64_t task, const Worker& worker) const {
        const LinearCut c = cut(context, step, p_.k);
        const Rows y{worker.floats, c.panel_tiles * kTileOutputs};
        const std::int64_t features = project(context, c, task, p_.k, y, worker);
        for_each_head(step, c, task, features,
                      [&](std::int64_t row, std::int64_t position, std::int64_t first, std::int64_t head) {
                          float* key = y.row(row - c.first_row(task)) + first;
                          norm_and_rotate(context, p_.k_norm, position, key);
                          store(context, step, row, position, head, key, nullptr);
                      });
    }

    void run_values(const Context& context, const StepView& step, std::int64_t task, const Worker& worker) const {
        const LinearCut c = cut(context, step, p_.v);
        const Rows y{worker.floats, c.panel_tiles * kTileOutputs};
        const std::int64_t features = project(context, c, task, p_.v, y, worker);
        for_each_head(step, c, task, features,
                      [&](std::int64_t row, std::int64_t position, std::int64_t first, std::int64_t head) {
                          store(context, step, row, position, head, nullptr, y.row(row - c.first_row(task)) + first);
                      });
    }

    // visit(row, position, first feature in the panel, head)
    template <typename Visit>
    void for_each_head(const StepView& step, const LinearCut& c, std::int64_t task, std::int64_t features,
                       Visit visit) const {
        const std::int64_t first_head = c.first_tile(task) * kTileOutputs / p_.shape.head_dim;
        for (std::int64_t row = c.first_row(task); row < c.end_row(task); ++row) {
            const std::int64_t position = step.positions[static_cast<std::size_t>(row)];
            for (std::int64_t first = 0, head = first_head; first < features; first += p_.shape.head_dim, ++head) {
                visit(row, position, first, head);
            }
        }
    }

    std::int64_t project(const Context& context, const LinearCut& c, std::int64_t task, const BiasedMatrix& matrix,
                         Rows y, const Worker& worker) const {
        return multiply_part(context, matrix, input_of(context, x_), part_of(c, task), y, worker);
    }

    void norm_and_rotate(const Context& context, const HeadNormWeights& norm, std::int64_t position,
                         float* head) const {
        if (!norm.weight.empty()) {
            context.kernels->rms_norm(head, norm.weight.data(), norm.eps, p_.shape.head_dim, head);
        }
        if (p_.rope < 0) return;
        const RopeTables& ropes = *context.ropes;
        context.kernels->rope(head, ropes.cos(p_.rope, position), ropes.sin(p_.rope, position), ropes.half(p_.rope));
    }

    void store(const Context& context, const StepView& step, std::int64_t row, std::int64_t position, std::int64_t head,
               const float* key, const float* value) const {
        const KvLayer& layer = context.kv->layer(p_.layer);
        context.kernels->write_kv(layer, step.row_blocks[static_cast<std::size_t>(row)], position % layer.block_size,
                                  head, key, value);
    }

    Value x_;
    QkvProjection p_;
    Value q_out_;
    std::int64_t align_;
};

}  // namespace

std::unique_ptr<Instruction> make_project_qkv(std::string name, Value x, QkvProjection projection, Value q_out) {
    return std::make_unique<ProjectQkv>(std::move(name), x, std::move(projection), q_out);
}

}  // namespace octavo
