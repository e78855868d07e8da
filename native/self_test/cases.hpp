// Small problems for kernels, with numbers that are the same on every machine, and what a table of kernels answers.
//
// Units are compared by these: a few at first use (self_test/self_test.hpp), all shapes and formats in tests/native.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/kernels.hpp"

namespace octavo {

// Limits of every case, for the scratch.
constexpr std::int64_t kCaseMostInputs = 8448, kCaseMostHeadDim = 256, kCaseMostHeadsPerKv = 8, kCaseMostQueries = 40;

// One problem. Everything is allocated when it is made.
class KernelCase {
public:
    virtual ~KernelCase() = default;
    // Kernel and shape, for people.
    virtual std::string name() const = 0;
    // The number of floats of an answer.
    virtual std::size_t answer_size() const = 0;
    // Fills `answer`. Allocates nothing and holds nothing, so that it may be left by a jump. `scratch` is aligned to 64
    // and has kernels.scratch_bytes(...) of the limits above.
    virtual void run(const Kernels& kernels, float* answer, std::byte* scratch) = 0;
};
using KernelCases = std::vector<std::unique_ptr<KernelCase>>;

struct PackedCaseShape {
    int bits = 4;
    bool has_zeros = false;
    ScaleFormat scale_format = ScaleFormat::f16;
    std::int64_t group = 64, groups_per_scale = 1;
    std::int64_t outputs = 32, inputs = 128, rows = 1;
    float output_scale = 1.0f;
};
struct DenseCaseShape {
    DenseFormat format = DenseFormat::f32;
    std::int64_t outputs = 32, inputs = 64, rows = 1;
    std::int64_t group = 64;  // FP8: inputs that share a scale
};
struct AttentionCaseShape {
    KvFormat format = KvFormat::bf16;
    std::int64_t heads_per_kv = 3, head_dim = 64, block_size = 32, positions = 100, queries = 1, window = 0;
    float softcap = 0.0f;
};

std::unique_ptr<KernelCase> packed_case(const PackedCaseShape& shape);
std::unique_ptr<KernelCase> dense_case(const DenseCaseShape& shape);
// Norm, addition, activations, rotation, soft cap and the quantization of rows of `features`.
std::unique_ptr<KernelCase> row_case(std::int64_t features);
// Keys and values written, attended part by part, folded and finished.
std::unique_ptr<KernelCase> attention_case(const AttentionCaseShape& shape);

// A few cases that together use every kernel and every integer path: under a millisecond on a vector unit.
KernelCases quick_cases();
// Every format, with shapes that have tails.
KernelCases thorough_cases();

}  // namespace octavo
