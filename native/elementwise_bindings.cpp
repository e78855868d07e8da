// The kernels that work row by row, called on plain arrays from Python (for tests and measurements).
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <stdexcept>

#include "kernel_units.hpp"

namespace nb = nanobind;

namespace octavo {
namespace {

template <typename Scalar>
using Matrix = nb::ndarray<Scalar, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <typename Scalar>
using Vector = nb::ndarray<Scalar, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

const Kernels& kernels_of(const std::string& unit) { return *(unit.empty() ? best_unit() : unit_named(unit)).kernels; }

void check(bool holds, const char* what) {
    if (!holds) throw std::invalid_argument(what);
}

template <typename Array>
std::int64_t extent(const Array& array, std::size_t axis) {
    return static_cast<std::int64_t>(array.shape(axis));
}

QuantizedRows quantized_rows(Matrix<std::int8_t>& codes, Matrix<float>& scales, Matrix<std::int32_t>& sums,
                             std::int64_t group) {
    QuantizedRows rows;
    rows.codes = codes.data(), rows.scales = scales.data(), rows.sums = sums.data();
    rows.padded = extent(codes, 1), rows.groups = extent(scales, 1), rows.group = group;
    return rows;
}

// Features [first, first + columns of x) of each row.
void quantize_rows(Matrix<const float> x, Matrix<std::int8_t> codes, Matrix<float> scales, Matrix<std::int32_t> sums,
                   std::int64_t group, std::int64_t first, const std::string& unit, bool whole_row, float fixed_scale) {
    const std::int64_t rows = extent(x, 0), features = extent(x, 1), groups = extent(scales, 1);
    check(group > 0 && first >= 0 && first % group == 0, "first must be a multiple of the group");
    check(extent(codes, 0) == rows && extent(codes, 1) >= first + features,
          "codes must be [rows, at least the features]");
    check(extent(scales, 0) == rows && groups >= (first + features + group - 1) / group && groups > 0,
          "scales must be [rows, groups]");
    check(extent(sums, 0) == rows && extent(sums, 1) == groups, "sums must have the shape of scales");
    QuantizedRows out = quantized_rows(codes, scales, sums, group);
    out.source = fixed_scale != 0.0f ? ScaleSource::fixed : whole_row ? ScaleSource::row : ScaleSource::group;
    out.fixed_scale = fixed_scale;
    const Kernels& kernels = kernels_of(unit);
    const nb::gil_scoped_release unlocked;
    for (std::int64_t row = 0; row < rows; ++row) {
        kernels.quantize_row(x.data() + row * features, features, out, row, first);
    }
}

void round_e4m3(Matrix<float> x, float fixed_scale, const std::string& unit) {
    const std::int64_t features = extent(x, 1);
    for (std::int64_t row = 0; row < extent(x, 0); ++row) {
        kernels_of(unit).round_e4m3(x.data() + row * features, features, fixed_scale);
    }
}

void rms_norm(Matrix<float> x, Vector<const float> weight, float eps, const std::string& unit) {
    const std::int64_t features = extent(x, 1);
    check(extent(weight, 0) == features, "weight must have a factor for each feature");
    const Kernels& kernels = kernels_of(unit);
    for (std::int64_t row = 0; row < extent(x, 0); ++row) {
        float* const values = x.data() + row * features;
        kernels.rms_norm(values, weight.data(), eps, features, values);
    }
}

void add(Matrix<float> y, Matrix<const float> x, const std::string& unit) {
    check(extent(x, 0) == extent(y, 0) && extent(x, 1) == extent(y, 1), "x and y must have the same shape");
    const std::int64_t features = extent(x, 1);
    for (std::int64_t row = 0; row < extent(x, 0); ++row) {
        kernels_of(unit).add(x.data() + row * features, features, y.data() + row * features);
    }
}

ActivationKind activation_named(const std::string& name) {
    if (name == "silu") return ActivationKind::silu;
    if (name == "gelu_tanh") return ActivationKind::gelu_tanh;
    throw std::invalid_argument("activation '" + name + "' is not one of silu, gelu_tanh");
}

void gated(Matrix<float> gate, Matrix<const float> up, const std::string& activation, const std::string& unit) {
    check(extent(gate, 0) == extent(up, 0) && extent(gate, 1) == extent(up, 1), "gate and up must have the same shape");
    const ActivationKind kind = activation_named(activation);
    const std::int64_t features = extent(gate, 1);
    for (std::int64_t row = 0; row < extent(gate, 0); ++row) {
        kernels_of(unit).gated(gate.data() + row * features, up.data() + row * features, features, kind);
    }
}

// heads [rows, head_dim], cos and sin [rows, half].
void rope(Matrix<float> heads, Matrix<const float> cos, Matrix<const float> sin, const std::string& unit) {
    const std::int64_t half = extent(cos, 1), head_dim = extent(heads, 1);
    check(2 * half <= head_dim && extent(sin, 1) == half, "cos and sin must be [rows, at most half of a head]");
    check(extent(cos, 0) == extent(heads, 0) && extent(sin, 0) == extent(heads, 0),
          "cos and sin must have a row for each");
    for (std::int64_t row = 0; row < extent(heads, 0); ++row) {
        kernels_of(unit).rope(heads.data() + row * head_dim, cos.data() + row * half, sin.data() + row * half, half);
    }
}

void softcap(Matrix<float> x, float cap, const std::string& unit) {
    const std::int64_t features = extent(x, 1);
    for (std::int64_t row = 0; row < extent(x, 0); ++row) {
        kernels_of(unit).softcap(x.data() + row * features, features, cap);
    }
}

}  // namespace
}  // namespace octavo

void bind_elementwise(nb::module_& module) {
    module.def("quantize_rows", &octavo::quantize_rows, nb::arg("x").noconvert(), nb::arg("codes").noconvert(),
               nb::arg("scales").noconvert(), nb::arg("sums").noconvert(), nb::arg("group"), nb::arg("first") = 0,
               nb::arg("unit") = "", nb::arg("whole_row") = false, nb::arg("fixed_scale") = 0.0f,
               "Fill codes, scales and sums; a group with NaN or infinity has scale NaN and codes 0. Scales are the "
               "groups' own, the row's, or `fixed_scale`.");
    module.def("round_e4m3", &octavo::round_e4m3, nb::arg("x").noconvert(), nb::arg("fixed_scale") = 0.0f,
               nb::arg("unit") = "", "Each row of x in place; without a fixed scale, absmax / 448 of the row.");
    module.def("rms_norm", &octavo::rms_norm, nb::arg("x").noconvert(), nb::arg("weight").noconvert(), nb::arg("eps"),
               nb::arg("unit") = "", "Each row of x in place.");
    module.def("add", &octavo::add, nb::arg("y").noconvert(), nb::arg("x").noconvert(), nb::arg("unit") = "", "y += x");
    module.def("gated", &octavo::gated, nb::arg("gate").noconvert(), nb::arg("up").noconvert(), nb::arg("activation"),
               nb::arg("unit") = "", "gate = activation(gate) * up");
    module.def("rope", &octavo::rope, nb::arg("heads").noconvert(), nb::arg("cos").noconvert(),
               nb::arg("sin").noconvert(), nb::arg("unit") = "", "Rotate each row of heads in place.");
    module.def("softcap", &octavo::softcap, nb::arg("x").noconvert(), nb::arg("cap"), nb::arg("unit") = "",
               "x = cap * tanh(x / cap)");
}
