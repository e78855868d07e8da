// A weight matrix as the instructions use it: packed (int8 activations in its groups) or dense (float activations).
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/kernels.hpp"

namespace octavo {

struct Matrix {
    const PackedWeight* packed = nullptr;  // one of the two
    const DenseWeight* dense = nullptr;
    std::int64_t num_bytes = 0;
    std::shared_ptr<const void> owner;  // keeps the memory

    std::int64_t outputs() const { return packed ? packed->outputs : dense->outputs; }
    std::int64_t inputs() const { return packed ? packed->inputs : dense->inputs; }
    std::int64_t tiles() const { return packed ? packed->tiles : dense->tiles; }
    // Features in a group of the activations it takes; 0: floats.
    std::int64_t input_group() const { return packed ? packed->group : 0; }
};

// Activations in the form a matrix takes.
struct MatrixInput {
    ConstRows floats;
    QuantizedRows quantized;
};

inline void multiply(const Kernels& kernels, const Matrix& matrix, const MatrixInput& x, std::int64_t first_row,
                     std::int64_t num_rows, std::int64_t first_tile, std::int64_t end_tile, Rows y,
                     std::byte* scratch) {
    if (matrix.packed) {
        kernels.packed_linear(*matrix.packed, x.quantized.from(first_row), num_rows, first_tile, end_tile, y, scratch);
    } else {
        kernels.dense_linear(*matrix.dense, x.floats.from(first_row), num_rows, first_tile, end_tile, y, scratch);
    }
}

inline void matrix_row(const Kernels& kernels, const Matrix& matrix, std::int64_t output, float multiplier, float* y) {
    if (matrix.packed) {
        kernels.packed_row(*matrix.packed, output, multiplier, y);
    } else {
        kernels.dense_row(*matrix.dense, output, multiplier, y);
    }
}

}  // namespace octavo
