// Weights in the kernels' layout, and how they get there.
//
// A matrix owns its memory. It is filled by ranges of tiles, so that several threads can share the work; ranges that do
// not overlap may be filled at the same time. Sources may be a mapped file: each byte is read once, in order.
#pragma once

#include <cstdint>

#include "kernels/packed_weight.hpp"
#include "program/aligned_memory.hpp"

namespace octavo {

// A quantized matrix as checkpoints store it (numerics/packing.py): each row a little-endian stream of unsigned codes.
struct CodeRows {
    const std::uint8_t* words = nullptr;
    std::int64_t row_bytes = 0;          // bytes of a row, a multiple of 4
    const void* scales = nullptr;        // [outputs, scale_groups] in the matrix's scale format
    const std::int8_t* zeros = nullptr;  // [outputs, scale_groups], signed, or null
};

class PackedMatrix {
public:
    // What a matrix is; `group` inputs between float rescales, `inputs_per_scale` a multiple of it, or at least a row.
    struct Shape {
        std::int32_t bits = 4;  // 2, 3, 4, 8 or kFp4
        std::int64_t outputs = 0, inputs = 0;
        std::int64_t group = 0, inputs_per_scale = 0;
        ScaleFormat scale_format = ScaleFormat::f16;
        bool has_zeros = false;
        float output_scale = 1.0f;
    };

    // Throws std::invalid_argument for a shape that the layout cannot hold, std::bad_alloc.
    explicit PackedMatrix(const Shape& shape);

    const PackedWeight& weight() const { return weight_; }
    std::int64_t num_bytes() const { return static_cast<std::int64_t>(memory_.num_bytes()); }
    static std::int64_t num_bytes_of(const Shape& shape);

    void fill(const CodeRows& source, std::int64_t first_tile, std::int64_t end_tile);

private:
    PackedWeight weight_;
    AlignedMemory memory_;
};

class DenseMatrix {
public:
    // `group` inputs share a scale of FP8 values: a divisor of kMostScaledInputs, or at least a row; other formats have
    // no scales. Throws std::invalid_argument, std::bad_alloc.
    struct Shape {
        std::int64_t outputs = 0, inputs = 0;
        DenseFormat format = DenseFormat::f32;
        std::int64_t group = 0;
    };
    static constexpr std::int64_t kMostScaledInputs = 256;

    explicit DenseMatrix(const Shape& shape);

    const DenseWeight& weight() const { return weight_; }
    std::int64_t num_bytes() const { return static_cast<std::int64_t>(memory_.num_bytes()); }
    static std::int64_t num_bytes_of(const Shape& shape);

    // `values` [outputs, inputs] in the matrix's format, rows `row_elements` apart; `scales` [outputs, groups] or null.
    void fill(const void* values, std::int64_t row_elements, const float* scales, std::int64_t first_tile,
              std::int64_t end_tile);

private:
    DenseWeight weight_;
    AlignedMemory memory_;
};

}  // namespace octavo
