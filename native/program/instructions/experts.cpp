#include "program/instructions/experts.hpp"

#include <algorithm>
#include <cmath>

#include "program/instructions/rowwise.hpp"

namespace octavo {
namespace {

using SharedSpec = std::shared_ptr<const ExpertsSpec>;

class Route final : public RowwiseInstruction {
public:
    Route(const std::string& name, Value x, SharedSpec spec)
        : RowwiseInstruction(name + ".router", "route", Domain::tokens), x_(x), spec_(std::move(spec)) {}
    Cost cost(const Context&, const StepShape& shape) const override {
        return linear_cost({&spec_->router}, static_cast<double>(shape.num_rows));
    }
    std::string weights() const override { return describe(spec_->router); }

protected:
    void run_row(const Context& context, const StepView&, std::int64_t row, const Worker& worker) const override {
        float* logits = worker.floats;
        const MatrixInput x = input_of(context, x_);
        multiply(*context.kernels, spec_->router, x, row, 1, 0, spec_->router.tiles(),
                 {logits, round_up(num_experts(), 16)}, worker.kernel_scratch);
        choose(*context.routing, row, logits);
    }

private:
    std::int64_t num_experts() const { return spec_->num_experts(); }

    // The largest logits, of equal ones the lowest id; then ascending by id.
    void choose(Routing& routing, std::int64_t row, const float* logits) const {
        const std::int64_t k = spec_->experts_per_token;
        float highest = logits[0];
        for (std::int64_t e = 1; e < num_experts(); ++e) highest = std::max(highest, logits[e]);
        float total = 0.0f;
        for (std::int64_t e = 0; e < num_experts(); ++e) total += std::exp(logits[e] - highest);
        std::int32_t* chosen = &routing.expert(row, 0, k);
        for (std::int64_t slot = 0; slot < k; ++slot) chosen[slot] = best_besides(logits, chosen, slot);
        std::sort(chosen, chosen + k);
        float kept = 0.0f;
        for (std::int64_t slot = 0; slot < k; ++slot) {
            float& weight = routing.weight(row, slot, k);
            weight = std::exp(logits[chosen[slot]] - highest) / total;
            kept += weight;
        }
        for (std::int64_t slot = 0; spec_->renormalize && slot < k; ++slot) routing.weight(row, slot, k) /= kept;
    }
    // NaN never wins but something must be chosen: its results are NaN whichever expert runs.
    std::int32_t best_besides(const float* logits, const std::int32_t* taken, std::int64_t num_taken) const {
        std::int32_t best = -1;
        for (std::int32_t e = 0; e < num_experts(); ++e) {
            if (std::find(taken, taken + num_taken, e) != taken + num_taken) continue;
            if (best < 0 || logits[e] > logits[best]) best = e;
        }
        return best;
    }

    Value x_;
    SharedSpec spec_;
};

class GroupByExpert final : public Instruction {
public:
    GroupByExpert(const std::string& name, SharedSpec spec)
        : Instruction(name + ".group", "group by expert"), spec_(std::move(spec)) {}
    std::int64_t num_tasks(const Context&, const StepView&) const override { return 1; }
    void run(const Context& context, const StepView& step, std::int64_t, const Worker&) const override {
        context.routing->group(step.num_rows(), spec_->num_experts(), spec_->experts_per_token);
    }
    Cost cost(const Context&, const StepShape& shape) const override {
        return {static_cast<double>(8 * shape.num_rows * spec_->experts_per_token), 0};
    }

private:
    SharedSpec spec_;
};

class GatherRouted final : public Instruction {
public:
    GatherRouted(const std::string& name, Value x, SharedSpec spec, Value routed)
        : Instruction(name + ".gather", RowOutput{routed}.kind("gather")),
          x_(x),
          spec_(std::move(spec)),
          routed_{routed} {}
    std::int64_t num_tasks(const Context&, const StepView& step) const override {
        return ceil_div(num_routed(step), kRowsPerTask);
    }
    void run(const Context& context, const StepView& step, std::int64_t task, const Worker&) const override {
        const std::int64_t end = std::min((task + 1) * kRowsPerTask, num_routed(step));
        for (std::int64_t place = task * kRowsPerTask; place < end; ++place) {
            const float* row = context.values->rows(x_).row(context.routing->row_at(place));
            if (!routed_.value.is_quantized()) {
                std::copy(row, row + x_.features, context.values->rows(routed_.value).row(place));
            }
            routed_.finish(context, place, row, x_.features);
        }
    }
    Cost cost(const Context&, const StepShape& shape) const override {
        const double rows = static_cast<double>(shape.num_rows * spec_->experts_per_token);
        return {rows * (4.0 * static_cast<double>(x_.features) + routed_.bytes_per_row()), 0};
    }

private:
    static constexpr std::int64_t kRowsPerTask = 8;
    std::int64_t num_routed(const StepView& step) const { return step.num_rows() * spec_->experts_per_token; }

    Value x_;
    SharedSpec spec_;
    RowOutput routed_;
};

// Tasks are (expert, panel of output tiles): how many rows an expert has is not known before the step runs.
class ExpertPhase : public Instruction {
public:
    ExpertPhase(std::string name, std::string kind, SharedSpec spec, std::int64_t num_tiles, std::int64_t align,
                std::int64_t num_buffers)
        : Instruction(std::move(name), std::move(kind)),
          spec_(std::move(spec)),
          num_tiles_(num_tiles),
          align_(align),
          num_buffers_(num_buffers) {}
    std::int64_t num_tasks(const Context& context, const StepView&) const override {
        return spec_->num_experts() * cut(context).num_panels();
    }
    void run(const Context& context, const StepView&, std::int64_t task, const Worker& worker) const override {
        const LinearCut c = cut(context);
        const std::int64_t expert = task / c.num_panels(), panel = task % c.num_panels();
        const std::int64_t first_tile = panel * c.panel_tiles,
                           end_tile = std::min(first_tile + c.panel_tiles, num_tiles_);
        const std::int64_t end = context.routing->first_of(expert + 1);
        for (std::int64_t row = context.routing->first_of(expert); row < end; row += kRowBlock) {
            run_block(context, expert, {row, std::min(kRowBlock, end - row), first_tile, end_tile}, worker);
        }
    }

protected:
    static constexpr std::int64_t kRowBlock = 64;

    virtual void run_block(const Context& context, std::int64_t expert, const ProductPart& part,
                           const Worker& worker) const = 0;
    // Experts that are used at all, as bytes are counted: at most one for each row and slot.
    double num_used(const StepShape& shape) const {
        return static_cast<double>(std::min(spec_->num_experts(), shape.num_rows * spec_->experts_per_token));
    }
    Cost cost_of(const StepShape& shape, const std::vector<const Matrix*>& matrices) const {
        const double rows = static_cast<double>(shape.num_rows * spec_->experts_per_token);
        Cost cost = linear_cost(matrices, rows);
        for (const Matrix* matrix : matrices)
            cost.num_bytes += (num_used(shape) - 1) * static_cast<double>(matrix->num_bytes);
        return cost;
    }
    const ExpertsSpec& spec() const { return *spec_; }

private:
    LinearCut cut(const Context& context) const {
        return LinearCut::of(num_tiles_, align_, kRowBlock, context.num_threads, num_buffers_);
    }

    SharedSpec spec_;
    std::int64_t num_tiles_, align_, num_buffers_;
};

class ExpertGateUp final : public ExpertPhase {
public:
    ExpertGateUp(const std::string& name, SharedSpec spec, Value x, Value hidden)
        : ExpertPhase(name + ".gate_up", "experts gate/up + activation", spec, spec->mlps[0].gate.matrix.tiles(),
                      tiles_of_group(hidden.form), 2),
          x_(x),
          hidden_{hidden} {}
    Cost cost(const Context&, const StepShape& shape) const override {
        return cost_of(shape, {&spec().mlps[0].gate.matrix, &spec().mlps[0].up.matrix});
    }
    std::string weights() const override {
        return std::to_string(spec().num_experts()) + " x 2 x " + describe(spec().mlps[0].gate.matrix);
    }

protected:
    void run_block(const Context& context, std::int64_t expert, const ProductPart& part,
                   const Worker& worker) const override {
        const ExpertMlp& mlp = spec().mlps[static_cast<std::size_t>(expert)];
        const MatrixInput x = input_of(context, x_);
        const std::int64_t first = part.first_feature(), width = part.end_tile * kTileOutputs - first;
        const Rows gate = hidden_.value.is_quantized()
                              ? Rows{worker.floats, width}
                              : context.values->rows(hidden_.value).from(part.first_row, first);
        const Rows up{worker.floats + part.num_rows * width, width};
        multiply_part(context, mlp.up, x, part, up, worker);
        const std::int64_t features = multiply_part(context, mlp.gate, x, part, gate, worker);
        for (std::int64_t row = 0; row < part.num_rows; ++row) {
            context.kernels->gated(gate.row(row), up.row(row), features, spec().activation);
            hidden_.finish(context, part.first_row + row, gate.row(row), features, first);
        }
    }

private:
    Value x_;
    RowOutput hidden_;
};

// Hidden features in the form in which they are read, where that takes whole rows.
class RoundRouted final : public Instruction {
public:
    RoundRouted(const std::string& name, SharedSpec spec, Value x, Value out)
        : Instruction(name + ".round", out.is_quantized() ? "quantize" : "round"),
          spec_(std::move(spec)),
          x_(x),
          out_{out} {}
    std::int64_t num_tasks(const Context&, const StepView& step) const override {
        return ceil_div(num_routed(step), kRowsPerTask);
    }
    void run(const Context& context, const StepView& step, std::int64_t task, const Worker&) const override {
        const std::int64_t end = std::min((task + 1) * kRowsPerTask, num_routed(step));
        for (std::int64_t row = task * kRowsPerTask; row < end; ++row) {
            const float* x = context.values->rows(x_).row(row);
            if (!out_.value.is_quantized()) {
                std::copy(x, x + x_.features, context.values->rows(out_.value).row(row));
            }
            out_.finish(context, row, x, x_.features);
        }
    }
    Cost cost(const Context&, const StepShape& shape) const override {
        const double rows = static_cast<double>(shape.num_rows * spec_->experts_per_token);
        return {rows * (4.0 * static_cast<double>(x_.features) + out_.bytes_per_row()), 0};
    }

private:
    static constexpr std::int64_t kRowsPerTask = 8;
    std::int64_t num_routed(const StepView& step) const { return step.num_rows() * spec_->experts_per_token; }

    SharedSpec spec_;
    Value x_;
    RowOutput out_;
};

class ExpertDown final : public ExpertPhase {
public:
    ExpertDown(const std::string& name, SharedSpec spec, Value hidden, Value y)
        : ExpertPhase(name + ".down", "experts down", spec, spec->mlps[0].down.matrix.tiles(), 1, 1),
          hidden_(hidden),
          y_(y) {}
    Cost cost(const Context&, const StepShape& shape) const override {
        return cost_of(shape, {&spec().mlps[0].down.matrix});
    }
    std::string weights() const override {
        return std::to_string(spec().num_experts()) + " x " + describe(spec().mlps[0].down.matrix);
    }

protected:
    void run_block(const Context& context, std::int64_t expert, const ProductPart& part,
                   const Worker& worker) const override {
        const Rows y = context.values->rows(y_).from(part.first_row, part.first_feature());
        const BiasedMatrix& down = spec().mlps[static_cast<std::size_t>(expert)].down;
        multiply_part(context, down, input_of(context, hidden_), part, y, worker);
    }

private:
    Value hidden_, y_;
};

// out = ((weight_1 y_1 + weight_2 y_2) + ...), by ascending id of the expert.
class Combine final : public RowwiseInstruction {
public:
    Combine(const std::string& name, SharedSpec spec, Value y, Value out)
        : RowwiseInstruction(name + ".combine", "combine", Domain::tokens), spec_(std::move(spec)), y_(y), out_(out) {}
    Cost cost(const Context&, const StepShape& shape) const override {
        const double values = static_cast<double>(y_.features * spec_->experts_per_token);
        return cost_of_rows(shape, 4.0 * values, 2.0 * values);
    }

protected:
    void run_row(const Context& context, const StepView&, std::int64_t row, const Worker&) const override {
        const std::int64_t k = spec_->experts_per_token;
        const Rows y = context.values->rows(y_);
        float* out = context.values->rows(out_).row(row);
        for (std::int64_t slot = 0; slot < k; ++slot) {
            const float weight = context.routing->weight(row, slot, k);
            const float* part = y.row(context.routing->place(row, slot, k));
            for (std::int64_t i = 0; i < y_.features; ++i) {
                out[i] = slot == 0 ? weight * part[i] : out[i] + weight * part[i];
            }
        }
    }

private:
    SharedSpec spec_;
    Value y_, out_;
};

}  // namespace

std::vector<std::unique_ptr<Instruction>> make_experts(const std::string& name, Value x, ExpertsSpec spec,
                                                       RoutedValues routed, Value out) {
    const auto shared = std::make_shared<const ExpertsSpec>(std::move(spec));
    std::vector<std::unique_ptr<Instruction>> phases;
    phases.push_back(std::make_unique<Route>(name, x, shared));
    phases.push_back(std::make_unique<GroupByExpert>(name, shared));
    phases.push_back(std::make_unique<GatherRouted>(name, x, shared, routed.x));
    phases.push_back(std::make_unique<ExpertGateUp>(name, shared, routed.x, routed.hidden));
    if (routed.rounded_hidden.slot != routed.hidden.slot) {
        phases.push_back(std::make_unique<RoundRouted>(name, shared, routed.hidden, routed.rounded_hidden));
    }
    phases.push_back(std::make_unique<ExpertDown>(name, shared, routed.rounded_hidden, routed.y));
    phases.push_back(std::make_unique<Combine>(name, shared, routed.y, out));
    return phases;
}

}  // namespace octavo
