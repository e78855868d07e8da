#include "program/instructions/linear.hpp"

#include <stdexcept>

#include "program/instructions/rowwise.hpp"

namespace octavo {
namespace {

class Linear final : public Instruction {
public:
    Linear(std::string name, Value x, std::vector<BiasedMatrix> matrices, std::vector<Value> outs)
        : Instruction(std::move(name), "linear"), x_(x), matrices_(std::move(matrices)), outs_(std::move(outs)) {}
    std::int64_t num_tasks(const Context& context, const StepView& step) const override {
        std::int64_t total = 0;
        for (std::size_t i = 0; i < matrices_.size(); ++i) total += cut(context, step, i).num_tasks();
        return total;
    }
    void run(const Context& context, const StepView& step, std::int64_t task, const Worker& worker) const override {
        std::size_t i = 0;
        for (std::int64_t n; task >= (n = cut(context, step, i).num_tasks()); ++i) task -= n;
        const ProductPart part = part_of(cut(context, step, i), task);
        const Rows y = context.values->rows(outs_[i]).from(part.first_row, part.first_feature());
        multiply_part(context, matrices_[i], input_of(context, x_), part, y, worker);
    }
    Cost cost(const Context&, const StepShape& shape) const override {
        std::vector<const Matrix*> all;
        for (const BiasedMatrix& each : matrices_) all.push_back(&each.matrix);
        return linear_cost(all, static_cast<double>(rows_of(shape, x_.domain)));
    }
    std::string weights() const override {
        std::string text;
        for (const BiasedMatrix& each : matrices_) text += (text.empty() ? "" : ", ") + describe(each.matrix);
        return text + describe(x_.form);
    }

private:
    LinearCut cut(const Context& context, const StepView& step, std::size_t i) const {
        return LinearCut::of(matrices_[i].matrix.tiles(), 1, rows_of(step, x_.domain), context.num_threads);
    }

    Value x_;
    std::vector<BiasedMatrix> matrices_;
    std::vector<Value> outs_;
};

class LinearAdd final : public Instruction {
public:
    LinearAdd(std::string name, Value x, BiasedMatrix matrix, Value residual)
        : Instruction(std::move(name), "linear + add"), x_(x), matrix_(std::move(matrix)), residual_(residual) {}
    std::int64_t num_tasks(const Context& context, const StepView& step) const override {
        return cut(context, step).num_tasks();
    }
    void run(const Context& context, const StepView& step, std::int64_t task, const Worker& worker) const override {
        const LinearCut c = cut(context, step);
        const ProductPart part = part_of(c, task);
        const Rows y{worker.floats, c.panel_tiles * kTileOutputs};
        const std::int64_t features = multiply_part(context, matrix_, input_of(context, x_), part, y, worker);
        const Rows residual = context.values->rows(residual_).from(part.first_row, part.first_feature());
        for (std::int64_t row = 0; row < part.num_rows; ++row) {
            context.kernels->add(y.row(row), features, residual.row(row));
        }
    }
    Cost cost(const Context&, const StepShape& shape) const override {
        return linear_cost({&matrix_.matrix}, static_cast<double>(rows_of(shape, x_.domain)));
    }
    std::string weights() const override { return describe(matrix_.matrix) + describe(x_.form); }

private:
    LinearCut cut(const Context& context, const StepView& step) const {
        return LinearCut::of(matrix_.matrix.tiles(), 1, rows_of(step, x_.domain), context.num_threads);
    }

    Value x_;
    BiasedMatrix matrix_;
    Value residual_;
};

class LinearGated final : public Instruction {
public:
    LinearGated(std::string name, Value x, BiasedMatrix gate, BiasedMatrix up, ActivationKind activation, Value out)
        : Instruction(std::move(name), RowOutput{out}.kind("gate/up + activation")),
          x_(x),
          gate_(std::move(gate)),
          up_(std::move(up)),
          activation_(activation),
          out_{out},
          align_(tiles_of_group(out.form)) {}
    std::int64_t num_tasks(const Context& context, const StepView& step) const override {
        return cut(context, step).num_tasks();
    }
    void run(const Context& context, const StepView& step, std::int64_t task, const Worker& worker) const override {
        const LinearCut c = cut(context, step);
        const ProductPart part = part_of(c, task);
        const MatrixInput x = input_of(context, x_);
        const std::int64_t first = part.first_feature(), width = c.panel_tiles * kTileOutputs;
        const Rows gate = out_.value.is_quantized() ? Rows{worker.floats, width}
                                                    : context.values->rows(out_.value).from(part.first_row, first);
        const Rows up{worker.floats + c.row_block * width, width};
        multiply_part(context, up_, x, part, up, worker);
        const std::int64_t features = multiply_part(context, gate_, x, part, gate, worker);
        for (std::int64_t row = 0; row < part.num_rows; ++row) {
            context.kernels->gated(gate.row(row), up.row(row), features, activation_);
            out_.finish(context, part.first_row + row, gate.row(row), features, first);
        }
    }
    Cost cost(const Context&, const StepShape& shape) const override {
        return linear_cost({&gate_.matrix, &up_.matrix}, static_cast<double>(rows_of(shape, x_.domain)));
    }
    std::string weights() const override { return describe(gate_.matrix) + " x 2" + describe(x_.form); }

private:
    LinearCut cut(const Context& context, const StepView& step) const {
        return LinearCut::of(gate_.matrix.tiles(), align_, rows_of(step, x_.domain), context.num_threads, 2);
    }

    Value x_;
    BiasedMatrix gate_, up_;
    ActivationKind activation_;
    RowOutput out_;
    std::int64_t align_;
};

class Logits final : public Instruction {
public:
    Logits(std::string name, Value x, BiasedMatrix matrix, float softcap)
        : Instruction(std::move(name), "logits"), x_(x), matrix_(std::move(matrix)), softcap_(softcap) {}
    std::int64_t num_tasks(const Context& context, const StepView& step) const override {
        return cut(context, step).num_tasks();
    }
    void run(const Context& context, const StepView& step, std::int64_t task, const Worker& worker) const override {
        const ProductPart part = part_of(cut(context, step), task);
        const Rows y = Rows{step.logits, step.vocabulary}.from(part.first_row, part.first_feature());
        const std::int64_t features = multiply_part(context, matrix_, input_of(context, x_), part, y, worker);
        for (std::int64_t row = 0; softcap_ != 0.0f && row < part.num_rows; ++row) {
            context.kernels->softcap(y.row(row), features, softcap_);
        }
    }
    Cost cost(const Context&, const StepShape& shape) const override {
        return linear_cost({&matrix_.matrix}, static_cast<double>(rows_of(shape, x_.domain)));
    }
    std::string weights() const override { return describe(matrix_.matrix) + describe(x_.form); }

private:
    LinearCut cut(const Context& context, const StepView& step) const {
        return LinearCut::of(matrix_.matrix.tiles(), 1, rows_of(step, x_.domain), context.num_threads);
    }

    Value x_;
    BiasedMatrix matrix_;
    float softcap_;
};

}  // namespace

MatrixInput input_of(const Context& context, const Value& x) {
    MatrixInput input;
    if (x.is_quantized()) {
        input.quantized = context.values->quantized(x);
    } else {
        const Rows rows = context.values->rows(x);
        input.floats = {rows.data, rows.stride};
    }
    return input;
}

Cost linear_cost(const std::vector<const Matrix*>& matrices, double num_rows) {
    Cost cost;
    for (const Matrix* matrix : matrices) {
        const double outputs = static_cast<double>(matrix->outputs()), inputs = static_cast<double>(matrix->inputs());
        const double weight_bytes = num_rows > 0 ? static_cast<double>(matrix->num_bytes) : 0;
        cost.num_bytes += weight_bytes + num_rows * (inputs * (matrix->packed ? 1 : 4) + outputs * 4);
        cost.num_operations += 2 * num_rows * outputs * inputs;
    }
    return cost;
}

std::string describe_scales(std::int64_t group, std::int64_t inputs) {
    return group >= inputs ? " per channel" : " group " + std::to_string(group);
}

std::string describe(const Matrix& matrix) {
    const std::string shape = " [" + std::to_string(matrix.outputs()) + ", " + std::to_string(matrix.inputs()) + "]";
    if (matrix.packed) {
        const std::int64_t group = matrix.packed->group * matrix.packed->groups_per_scale;
        const std::int32_t bits = matrix.packed->bits;
        const std::string codes = bits == kFp4 ? "fp4 e2m1" : "int" + std::to_string(bits);
        return codes + (matrix.packed->zeros ? " asymmetric" : "") + describe_scales(group, matrix.inputs()) + shape;
    }
    static constexpr const char* names[] = {"float32", "bfloat16", "float16", "fp8 e4m3", "fp8 e5m2"};
    const std::string name = names[static_cast<std::int32_t>(matrix.dense->format)];
    if (!is_fp8(matrix.dense->format)) return name + shape;
    return name + describe_scales(matrix.dense->group, matrix.inputs()) + shape;
}

std::string describe(const Form& form) {
    if (form.grid == Grid::floats || (form.grid == Grid::int8 && form.source == ScaleSource::group)) return "";
    if (form.grid == Grid::mxfp8) return " x mxfp8";
    const std::string scales = form.source == ScaleSource::fixed ? " static"
                               : form.source == ScaleSource::row ? " per token"
                                                                 : " group " + std::to_string(form.group);
    return (form.grid == Grid::int8 ? " x int8" : " x fp8 e4m3") + scales;
}

ProductPart part_of(const LinearCut& cut, std::int64_t task) {
    return {cut.first_row(task), cut.end_row(task) - cut.first_row(task), cut.first_tile(task), cut.end_tile(task)};
}

std::int64_t multiply_part(const Context& context, const BiasedMatrix& matrix, const MatrixInput& x,
                           const ProductPart& part, Rows y, const Worker& worker) {
    multiply(*context.kernels, matrix.matrix, x, part.first_row, part.num_rows, part.first_tile, part.end_tile, y,
             worker.kernel_scratch);
    const std::int64_t first = part.first_feature();
    const std::int64_t features = std::min(part.end_tile * kTileOutputs, matrix.matrix.outputs()) - first;
    for (std::int64_t row = 0; !matrix.bias.empty() && row < part.num_rows; ++row) {
        context.kernels->add(matrix.bias.data() + first, features, y.row(row));
    }
    return features;
}

std::unique_ptr<Instruction> make_linear(std::string name, Value x, std::vector<BiasedMatrix> matrices,
                                         std::vector<Value> outs) {
    return std::make_unique<Linear>(std::move(name), x, std::move(matrices), std::move(outs));
}
std::unique_ptr<Instruction> make_linear_add(std::string name, Value x, BiasedMatrix matrix, Value residual) {
    return std::make_unique<LinearAdd>(std::move(name), x, std::move(matrix), residual);
}
std::unique_ptr<Instruction> make_linear_gated(std::string name, Value x, BiasedMatrix gate, BiasedMatrix up,
                                               ActivationKind activation, Value out) {
    return std::make_unique<LinearGated>(std::move(name), x, std::move(gate), std::move(up), activation, out);
}
std::unique_ptr<Instruction> make_logits(std::string name, Value x, BiasedMatrix matrix, float softcap) {
    return std::make_unique<Logits>(std::move(name), x, std::move(matrix), softcap);
}

}  // namespace octavo
