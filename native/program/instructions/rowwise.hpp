// Instructions that compute each row by itself.
#pragma once

#include <memory>
#include <vector>

#include "program/instruction.hpp"
#include "program/matrix.hpp"

namespace octavo {

// Cuts rows into tasks and visits them one by one.
class RowwiseInstruction : public Instruction {
public:
    RowwiseInstruction(std::string name, std::string kind, Domain domain)
        : Instruction(std::move(name), std::move(kind)), domain_(domain) {}
    std::int64_t num_tasks(const Context&, const StepView& step) const override {
        return ceil_div(rows_of(step, domain_), kRowsPerTask);
    }
    void run(const Context& context, const StepView& step, std::int64_t task, const Worker& worker) const override;

protected:
    virtual void run_row(const Context& context, const StepView& step, std::int64_t row,
                         const Worker& worker) const = 0;
    Cost cost_of_rows(const StepShape& shape, double bytes_per_row, double operations_per_row) const {
        const double rows = static_cast<double>(rows_of(shape, domain_));
        return {rows * bytes_per_row, rows * operations_per_row};
    }
    Domain domain() const { return domain_; }

private:
    static constexpr std::int64_t kRowsPerTask = 8;
    Domain domain_;
};

// x on the form's floating-point grid, in place. x begins with a group.
void round_row(const Kernels& kernels, const Form& form, float* x, std::int64_t features);
// Output tiles that must be computed together, so that groups of the form are whole.
std::int64_t tiles_of_group(const Form& form);

// A row for the next instruction in the form that it takes: stored as computed, rounded, or quantized.
struct RowOutput {
    Value value;

    // Where to compute the row: the value's own row, or `spare` for one that will be quantized.
    float* destination(const Context& context, std::int64_t row, float* spare) const {
        return value.is_quantized() ? spare : context.values->rows(value).row(row);
    }
    // `computed` holds features [first, first + features) of the row.
    void finish(const Context& context, std::int64_t row, const float* computed, std::int64_t features,
                std::int64_t first = 0) const {
        if (value.is_quantized()) {
            context.kernels->quantize_row(computed, features, context.values->quantized(value), row, first);
        } else if (value.is_rounded()) {
            round_row(*context.kernels, value.form, context.values->rows(value).row(row) + first, features);
        }
    }
    // "norm" -> "norm + quantize"
    std::string kind(const std::string& computes) const {
        return computes + (value.is_quantized() ? " + quantize" : value.is_rounded() ? " + round" : "");
    }
    double bytes_per_row() const { return static_cast<double>(value.features) * (value.is_quantized() ? 1.0 : 4.0); }
};

std::unique_ptr<Instruction> make_embed(std::string name, Matrix matrix, float multiplier, Value out);
std::unique_ptr<Instruction> make_norm(std::string name, Value x, std::vector<float> weight, float eps, Value out);
std::unique_ptr<Instruction> make_head_norm(std::string name, Value x, std::vector<float> weight, float eps);
std::unique_ptr<Instruction> make_quantize(std::string name, Value x, Value out);
std::unique_ptr<Instruction> make_rope(std::string name, Value x, std::int64_t rope, std::int64_t head_dim);
std::unique_ptr<Instruction> make_write_kv(std::string name, Value k, Value v, std::int64_t layer,
                                           AttentionShape shape);
std::unique_ptr<Instruction> make_gated(std::string name, Value gate, Value up, ActivationKind activation, Value out);
std::unique_ptr<Instruction> make_add(std::string name, Value x, Value y, Value out);
std::unique_ptr<Instruction> make_gather(std::string name, Value x, Value out);
// For a value that is changed in place while its old numbers are still needed.
std::unique_ptr<Instruction> make_copy(std::string name, Value x, Value out);

}  // namespace octavo
