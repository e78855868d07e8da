// An instruction: one phase of a step, cut into tasks that write disjoint memory.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "kernels/kernels.hpp"
#include "program/attention_plan.hpp"
#include "program/kv_store.hpp"
#include "program/rope_tables.hpp"
#include "program/routing.hpp"
#include "program/step_view.hpp"
#include "program/values.hpp"

namespace octavo {

// What all instructions of a program share.
struct Context {
    const Kernels* kernels = nullptr;
    int num_threads = 1;
    KvStore* kv = nullptr;
    Values* values = nullptr;
    RopeTables* ropes = nullptr;
    AttentionPlans* plans = nullptr;
    Routing* routing = nullptr;
};

// Memory of one thread.
struct Worker {
    std::byte* kernel_scratch = nullptr;
    float* floats = nullptr;  // kScratchFloats of them, at a cache line
};
constexpr std::int64_t kScratchFloats = 1 << 15;

// The size of a step, for costs: rows are shared evenly by its sequences, each of which has `context` positions already.
struct StepShape {
    std::int64_t num_rows = 1, context = 0, num_logit_rows = 1, num_sequences = 1;

    std::int64_t rows_per_sequence() const { return num_rows / num_sequences; }
};

// Bytes that must be read or written at least once, and operations (a multiplication and an addition are two).
struct Cost {
    double num_bytes = 0, num_operations = 0;
};

class Instruction {
public:
    Instruction(std::string name, std::string kind) : name_(std::move(name)), kind_(std::move(kind)) {}
    virtual ~Instruction() = default;

    const std::string& name() const { return name_; }
    const std::string& kind() const { return kind_; }
    virtual std::int64_t num_tasks(const Context& context, const StepView& step) const = 0;
    virtual void run(const Context& context, const StepView& step, std::int64_t task, const Worker& worker) const = 0;
    virtual Cost cost(const Context& context, const StepShape& shape) const = 0;
    // What the weights are, for people: "int4 group 64 [576, 576]"; empty without weights.
    virtual std::string weights() const { return ""; }

private:
    std::string name_, kind_;
};

// Rows of the tokens and logits domains; how many rows are routed depends on the layer.
inline std::int64_t rows_of(const StepView& step, Domain domain) {
    return domain == Domain::tokens ? step.num_rows() : step.num_logit_rows();
}
inline std::int64_t rows_of(const StepShape& shape, Domain domain) {
    return domain == Domain::tokens ? shape.num_rows : shape.num_logit_rows;
}
constexpr std::int64_t ceil_div(std::int64_t n, std::int64_t d) { return (n + d - 1) / d; }

}  // namespace octavo
