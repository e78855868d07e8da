#include "program/instructions/rowwise.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

namespace octavo {
namespace {

double features_of(const Value& value) { return static_cast<double>(value.features); }

void copy_row(const float* from, std::int64_t features, float* to) {
    if (from != to) std::memcpy(to, from, static_cast<std::size_t>(features) * sizeof(float));
}

class Embed final : public RowwiseInstruction {
public:
    Embed(std::string name, Matrix matrix, float multiplier, Value out)
        : RowwiseInstruction(std::move(name), "embed", out.domain),
          matrix_(std::move(matrix)),
          multiplier_(multiplier),
          out_(out) {}
    Cost cost(const Context&, const StepShape& shape) const override {
        return cost_of_rows(shape, 5.0 * features_of(out_), features_of(out_));
    }

protected:
    void run_row(const Context& context, const StepView& step, std::int64_t row, const Worker&) const override {
        matrix_row(*context.kernels, matrix_, step.tokens[static_cast<std::size_t>(row)], multiplier_,
                   context.values->rows(out_).row(row));
    }

private:
    Matrix matrix_;
    float multiplier_;
    Value out_;
};

class RmsNorm final : public RowwiseInstruction {
public:
    RmsNorm(std::string name, Value x, std::vector<float> weight, float eps, Value out)
        : RowwiseInstruction(std::move(name), RowOutput{out}.kind("norm"), out.domain),
          x_(x),
          weight_(std::move(weight)),
          eps_(eps),
          out_{out} {}
    Cost cost(const Context&, const StepShape& shape) const override {
        return cost_of_rows(shape, 4.0 * features_of(x_) + out_.bytes_per_row(), 4.0 * features_of(x_));
    }

protected:
    void run_row(const Context& context, const StepView&, std::int64_t row, const Worker& worker) const override {
        float* y = out_.destination(context, row, worker.floats);
        context.kernels->rms_norm(context.values->rows(x_).row(row), weight_.data(), eps_, x_.features, y);
        out_.finish(context, row, y, x_.features);
    }

private:
    Value x_;
    std::vector<float> weight_;
    float eps_;
    RowOutput out_;
};

class HeadNorm final : public RowwiseInstruction {
public:
    HeadNorm(std::string name, Value x, std::vector<float> weight, float eps)
        : RowwiseInstruction(std::move(name), "head norm", x.domain), x_(x), weight_(std::move(weight)), eps_(eps) {}
    Cost cost(const Context&, const StepShape& shape) const override {
        return cost_of_rows(shape, 8.0 * features_of(x_), 4.0 * features_of(x_));
    }

protected:
    void run_row(const Context& context, const StepView&, std::int64_t row, const Worker&) const override {
        const std::int64_t head_dim = static_cast<std::int64_t>(weight_.size());
        float* x = context.values->rows(x_).row(row);
        for (std::int64_t first = 0; first < x_.features; first += head_dim) {
            context.kernels->rms_norm(x + first, weight_.data(), eps_, head_dim, x + first);
        }
    }

private:
    Value x_;
    std::vector<float> weight_;
    float eps_;
};

class Quantize final : public RowwiseInstruction {
public:
    Quantize(std::string name, Value x, Value out)
        : RowwiseInstruction(std::move(name), out.is_quantized() ? "quantize" : "round", out.domain),
          x_(x),
          out_{out} {}
    Cost cost(const Context&, const StepShape& shape) const override {
        return cost_of_rows(shape, 4.0 * features_of(x_) + out_.bytes_per_row(), 3.0 * features_of(x_));
    }

protected:
    void run_row(const Context& context, const StepView&, std::int64_t row, const Worker&) const override {
        const float* x = context.values->rows(x_).row(row);
        if (!out_.value.is_quantized()) copy_row(x, x_.features, context.values->rows(out_.value).row(row));
        out_.finish(context, row, x, x_.features);
    }

private:
    Value x_;
    RowOutput out_;
};

class Rotate final : public RowwiseInstruction {
public:
    Rotate(std::string name, Value x, std::int64_t rope, std::int64_t head_dim)
        : RowwiseInstruction(std::move(name), "rope", x.domain), x_(x), rope_(rope), head_dim_(head_dim) {}
    Cost cost(const Context&, const StepShape& shape) const override {
        return cost_of_rows(shape, 8.0 * features_of(x_), 3.0 * features_of(x_));
    }

protected:
    void run_row(const Context& context, const StepView& step, std::int64_t row, const Worker&) const override {
        const std::int64_t position = step.positions[static_cast<std::size_t>(row)];
        const RopeTables& ropes = *context.ropes;
        float* x = context.values->rows(x_).row(row);
        for (std::int64_t first = 0; first < x_.features; first += head_dim_) {
            context.kernels->rope(x + first, ropes.cos(rope_, position), ropes.sin(rope_, position), ropes.half(rope_));
        }
    }

private:
    Value x_;
    std::int64_t rope_, head_dim_;
};

class WriteKv final : public RowwiseInstruction {
public:
    WriteKv(std::string name, Value k, Value v, std::int64_t layer, AttentionShape shape)
        : RowwiseInstruction(std::move(name), "write kv", k.domain), k_(k), v_(v), layer_(layer), shape_(shape) {}
    Cost cost(const Context& context, const StepShape& shape) const override {
        const double stored = static_cast<double>(element_bytes(context.kv->layer(layer_).format));
        return cost_of_rows(shape, (4.0 + stored) * (features_of(k_) + features_of(v_)), 0.0);
    }

protected:
    void run_row(const Context& context, const StepView& step, std::int64_t row, const Worker&) const override {
        const KvLayer& layer = context.kv->layer(layer_);
        const std::int64_t offset = step.positions[static_cast<std::size_t>(row)] % layer.block_size;
        const float *k = context.values->rows(k_).row(row), *v = context.values->rows(v_).row(row);
        for (std::int64_t head = 0; head < shape_.num_kv_heads; ++head) {
            context.kernels->write_kv(layer, step.row_blocks[static_cast<std::size_t>(row)], offset, head,
                                      k + head * shape_.head_dim, v + head * shape_.head_dim);
        }
    }

private:
    Value k_, v_;
    std::int64_t layer_;
    AttentionShape shape_;
};

class Gated final : public RowwiseInstruction {
public:
    Gated(std::string name, Value gate, Value up, ActivationKind activation, Value out)
        : RowwiseInstruction(std::move(name), RowOutput{out}.kind("gated"), out.domain),
          gate_(gate),
          up_(up),
          activation_(activation),
          out_{out} {}
    Cost cost(const Context&, const StepShape& shape) const override {
        return cost_of_rows(shape, 8.0 * features_of(gate_) + out_.bytes_per_row(), 10.0 * features_of(gate_));
    }

protected:
    void run_row(const Context& context, const StepView&, std::int64_t row, const Worker& worker) const override {
        float* y = out_.destination(context, row, worker.floats);
        copy_row(context.values->rows(gate_).row(row), gate_.features, y);
        context.kernels->gated(y, context.values->rows(up_).row(row), gate_.features, activation_);
        out_.finish(context, row, y, gate_.features);
    }

private:
    Value gate_, up_;
    ActivationKind activation_;
    RowOutput out_;
};

class Add final : public RowwiseInstruction {
public:
    Add(std::string name, Value x, Value y, Value out)
        : RowwiseInstruction(std::move(name), "add", out.domain), x_(x), y_(y), out_(out) {}
    Cost cost(const Context&, const StepShape& shape) const override {
        return cost_of_rows(shape, 12.0 * features_of(x_), features_of(x_));
    }

protected:
    // x + y has the bits of y + x, so `out` may be either.
    void run_row(const Context& context, const StepView&, std::int64_t row, const Worker&) const override {
        const float *x = context.values->rows(x_).row(row), *y = context.values->rows(y_).row(row);
        float* out = context.values->rows(out_).row(row);
        if (out == y) std::swap(x, y);
        copy_row(x, x_.features, out);
        context.kernels->add(y, x_.features, out);
    }

private:
    Value x_, y_, out_;
};

class Gather final : public RowwiseInstruction {
public:
    Gather(std::string name, Value x, Value out)
        : RowwiseInstruction(std::move(name), "gather", Domain::logits), x_(x), out_(out) {}
    Cost cost(const Context&, const StepShape& shape) const override {
        return cost_of_rows(shape, 8.0 * features_of(x_), 0.0);
    }

protected:
    void run_row(const Context& context, const StepView& step, std::int64_t row, const Worker&) const override {
        const std::int64_t source = step.logit_rows[static_cast<std::size_t>(row)];
        copy_row(context.values->rows(x_).row(source), x_.features, context.values->rows(out_).row(row));
    }

private:
    Value x_, out_;
};

class Copy final : public RowwiseInstruction {
public:
    Copy(std::string name, Value x, Value out)
        : RowwiseInstruction(std::move(name), "copy", x.domain), x_(x), out_(out) {}
    Cost cost(const Context&, const StepShape& shape) const override {
        return cost_of_rows(shape, 8.0 * features_of(x_), 0.0);
    }

protected:
    void run_row(const Context& context, const StepView&, std::int64_t row, const Worker&) const override {
        copy_row(context.values->rows(x_).row(row), x_.features, context.values->rows(out_).row(row));
    }

private:
    Value x_, out_;
};

}  // namespace

namespace {

// 2^(floor(log2 largest) - 8), one more where the mantissa would clip (float_grid.py): MXFP8's scale of a group. 1 where
// the largest magnitude is 0 or not a number, which rounding then sees.
float mx_scale(const float* x, std::int64_t count) {
    float largest = 0.0f;
    for (std::int64_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(x[i]));
    if (!std::isnormal(largest)) return 1.0f;
    int exponent = 0;
    const float mantissa = std::frexp(largest, &exponent);  // in [.5, 1)
    const float scale = std::ldexp(1.0f, exponent - 9 + (mantissa >= 1.75f / 2 ? 1 : 0));
    return std::max(scale, std::numeric_limits<float>::min());
}

}  // namespace

void round_row(const Kernels& kernels, const Form& form, float* x, std::int64_t features) {
    const std::int64_t group = form.group > 0 ? form.group : features;
    for (std::int64_t start = 0; start < features; start += group) {
        const std::int64_t count = std::min(group, features - start);
        const float scale = form.grid == Grid::mxfp8 ? mx_scale(x + start, count) : form.fixed_scale;
        kernels.round_e4m3(x + start, count, scale);
    }
}

std::int64_t tiles_of_group(const Form& form) {
    return form.group > 0 ? std::lcm(form.group, kTileOutputs) / kTileOutputs : 1;
}

void RowwiseInstruction::run(const Context& context, const StepView& step, std::int64_t task,
                             const Worker& worker) const {
    const std::int64_t first = task * kRowsPerTask;
    const std::int64_t end = std::min(first + kRowsPerTask, rows_of(step, domain_));
    for (std::int64_t row = first; row < end; ++row) run_row(context, step, row, worker);
}

std::unique_ptr<Instruction> make_embed(std::string name, Matrix matrix, float multiplier, Value out) {
    return std::make_unique<Embed>(std::move(name), std::move(matrix), multiplier, out);
}
std::unique_ptr<Instruction> make_norm(std::string name, Value x, std::vector<float> weight, float eps, Value out) {
    return std::make_unique<RmsNorm>(std::move(name), x, std::move(weight), eps, out);
}
std::unique_ptr<Instruction> make_head_norm(std::string name, Value x, std::vector<float> weight, float eps) {
    return std::make_unique<HeadNorm>(std::move(name), x, std::move(weight), eps);
}
std::unique_ptr<Instruction> make_quantize(std::string name, Value x, Value out) {
    return std::make_unique<Quantize>(std::move(name), x, out);
}
std::unique_ptr<Instruction> make_rope(std::string name, Value x, std::int64_t rope, std::int64_t head_dim) {
    return std::make_unique<Rotate>(std::move(name), x, rope, head_dim);
}
std::unique_ptr<Instruction> make_write_kv(std::string name, Value k, Value v, std::int64_t layer,
                                           AttentionShape shape) {
    return std::make_unique<WriteKv>(std::move(name), k, v, layer, shape);
}
std::unique_ptr<Instruction> make_gated(std::string name, Value gate, Value up, ActivationKind activation, Value out) {
    return std::make_unique<Gated>(std::move(name), gate, up, activation, out);
}
std::unique_ptr<Instruction> make_add(std::string name, Value x, Value y, Value out) {
    return std::make_unique<Add>(std::move(name), x, y, out);
}
std::unique_ptr<Instruction> make_gather(std::string name, Value x, Value out) {
    return std::make_unique<Gather>(std::move(name), x, out);
}
std::unique_ptr<Instruction> make_copy(std::string name, Value x, Value out) {
    return std::make_unique<Copy>(std::move(name), x, out);
}

}  // namespace octavo
