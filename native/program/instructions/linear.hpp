// Matrix products, alone and with what follows them.
#pragma once

#include <memory>
#include <vector>

#include "program/instruction.hpp"
#include "program/linear_cut.hpp"
#include "program/matrix.hpp"

namespace octavo {

// A matrix with its bias (empty: none).
struct BiasedMatrix {
    Matrix matrix;
    std::vector<float> bias;
};

// The activations of value `x` in the form its readers take.
MatrixInput input_of(const Context& context, const Value& x);
// Bytes of the matrices once, plus rows in and out; operations of all rows.
Cost linear_cost(const std::vector<const Matrix*>& matrices, double num_rows);
// "int4 group 64 [576, 576]"
std::string describe(const Matrix& matrix);
// How inputs are rounded where a recipe asks for it: " x int8 per token"; "" where only the kernel does.
std::string describe(const Form& form);
// Rows and tiles of one product.
struct ProductPart {
    std::int64_t first_row = 0, num_rows = 0;
    std::int64_t first_tile = 0, end_tile = 0;

    std::int64_t first_feature() const { return first_tile * kTileOutputs; }
};
ProductPart part_of(const LinearCut& cut, std::int64_t task);
// y = x @ matrix.T + bias for the part; y begins with its first row and feature. Returns the number of features.
std::int64_t multiply_part(const Context& context, const BiasedMatrix& matrix, const MatrixInput& x,
                           const ProductPart& part, Rows y, const Worker& worker);

// Several products of one input; out[i] = x @ matrices[i].T + bias.
std::unique_ptr<Instruction> make_linear(std::string name, Value x, std::vector<BiasedMatrix> matrices,
                                         std::vector<Value> outs);
// residual += x @ matrix.T + bias
std::unique_ptr<Instruction> make_linear_add(std::string name, Value x, BiasedMatrix matrix, Value residual);
// out = activation(x @ gate.T + gate bias) * (x @ up.T + up bias). The form of `out` must be local.
std::unique_ptr<Instruction> make_linear_gated(std::string name, Value x, BiasedMatrix gate, BiasedMatrix up,
                                               ActivationKind activation, Value out);
// The step's logits = x @ matrix.T + bias, soft-capped unless `softcap` is 0.
std::unique_ptr<Instruction> make_logits(std::string name, Value x, BiasedMatrix matrix, float softcap);

}  // namespace octavo
