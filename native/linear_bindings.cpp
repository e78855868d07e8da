// Matrices for Python, and the linear kernels called on plain arrays (for tests and measurements).
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <stdexcept>

#include "kernel_units.hpp"
#include "pack_weight.hpp"

namespace nb = nanobind;

namespace octavo {
namespace {

template <typename Scalar>
using Array2 = nb::ndarray<Scalar, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

ScaleFormat scale_format_named(const std::string& name) {
    if (name == "float16") return ScaleFormat::f16;
    if (name == "bfloat16") return ScaleFormat::bf16;
    if (name == "float32") return ScaleFormat::f32;
    throw std::invalid_argument("scale format '" + name + "' is not one of float16, bfloat16, float32");
}

DenseFormat dense_format_named(const std::string& name) {
    if (name == "float32") return DenseFormat::f32;
    if (name == "bfloat16") return DenseFormat::bf16;
    if (name == "float16") return DenseFormat::f16;
    if (name == "fp8 e4m3") return DenseFormat::e4m3;
    if (name == "fp8 e5m2") return DenseFormat::e5m2;
    throw std::invalid_argument("dense format '" + name +
                                "' is not one of float32, bfloat16, float16, fp8 e4m3, fp8 e5m2");
}

const void* pointer(std::uintptr_t address) { return reinterpret_cast<const void*>(address); }

void fill_packed(PackedMatrix& matrix, std::uintptr_t words, std::int64_t row_bytes, std::uintptr_t scales,
                 std::uintptr_t zeros, std::int64_t first_tile, std::int64_t end_tile) {
    const CodeRows source = {static_cast<const std::uint8_t*>(pointer(words)), row_bytes, pointer(scales),
                             static_cast<const std::int8_t*>(pointer(zeros))};
    matrix.fill(source, first_tile, end_tile);
}

void fill_dense(DenseMatrix& matrix, std::uintptr_t values, std::int64_t row_elements, std::uintptr_t scales,
                std::int64_t first_tile, std::int64_t end_tile) {
    matrix.fill(pointer(values), row_elements, static_cast<const float*>(pointer(scales)), first_tile, end_tile);
}

const Kernels& kernels_of(const std::string& unit) { return *(unit.empty() ? best_unit() : unit_named(unit)).kernels; }

AlignedMemory scratch_for(const Kernels& kernels, std::int64_t inputs) {
    return AlignedMemory(kernels.scratch_bytes(inputs, 64, 1, 1));
}

void check(bool holds, const char* what) {
    if (!holds) throw std::invalid_argument(what);
}

template <typename Weight>
std::int64_t outputs_of(const Weight& w, std::int64_t first_tile, std::int64_t end_tile) {
    return std::max<std::int64_t>(0, std::min(end_tile * kTileOutputs, w.outputs) - first_tile * kTileOutputs);
}

void packed_linear(const PackedMatrix& matrix, Array2<std::int8_t> codes, Array2<float> scales,
                   Array2<std::int32_t> sums, std::int64_t first_tile, std::int64_t end_tile, Array2<float> y,
                   const std::string& unit) {
    const PackedWeight& w = matrix.weight();
    const auto rows = static_cast<std::int64_t>(codes.shape(0)), groups = static_cast<std::int64_t>(scales.shape(1));
    const auto padded = static_cast<std::int64_t>(codes.shape(1));
    check(padded == round_up(w.inputs, kFeatureMultiple), "codes must be [rows, inputs rounded up to 64]");
    check(groups == w.groups && sums.shape(1) == scales.shape(1), "scales and sums must be [rows, groups]");
    check(first_tile >= 0 && first_tile <= end_tile && end_tile <= w.tiles, "tiles must be within the matrix");
    const auto outputs = static_cast<std::int64_t>(y.shape(1));
    check(outputs == outputs_of(w, first_tile, end_tile), "y must be [rows, outputs of the tiles]");
    check(sums.shape(0) == codes.shape(0) && scales.shape(0) == codes.shape(0) && y.shape(0) == codes.shape(0),
          "codes, scales, sums and y must have the same rows");
    QuantizedRows x;
    x.codes = codes.data(), x.scales = scales.data(), x.sums = sums.data();
    x.padded = padded, x.groups = groups, x.group = w.group;
    const Kernels& kernels = kernels_of(unit);
    const AlignedMemory scratch = scratch_for(kernels, w.inputs);
    const nb::gil_scoped_release unlocked;
    kernels.packed_linear(w, x, rows, first_tile, end_tile, {y.data(), outputs}, scratch.data());
}

void dense_linear(const DenseMatrix& matrix, Array2<const float> x, std::int64_t first_tile, std::int64_t end_tile,
                  Array2<float> y, const std::string& unit) {
    const DenseWeight& w = matrix.weight();
    check(static_cast<std::int64_t>(x.shape(1)) == w.inputs, "x must be [rows, inputs]");
    check(first_tile >= 0 && first_tile <= end_tile && end_tile <= w.tiles, "tiles must be within the matrix");
    const auto outputs = static_cast<std::int64_t>(y.shape(1));
    check(outputs == outputs_of(w, first_tile, end_tile), "y must be [rows, outputs of the tiles]");
    check(y.shape(0) == x.shape(0), "x and y must have the same rows");
    const Kernels& kernels = kernels_of(unit);
    const AlignedMemory scratch = scratch_for(kernels, w.inputs);
    const nb::gil_scoped_release unlocked;
    kernels.dense_linear(w, {x.data(), w.inputs}, static_cast<std::int64_t>(x.shape(0)), first_tile, end_tile,
                         {y.data(), outputs}, scratch.data());
}

using Vector = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <typename Weight>
void check_row(const Weight& w, std::int64_t output, const Vector& y) {
    check(output >= 0 && output < w.outputs, "output must be a row of the matrix");
    check(static_cast<std::int64_t>(y.shape(0)) == w.inputs, "y must be [inputs]");
}

void packed_row(const PackedMatrix& matrix, std::int64_t output, float multiplier, Vector y, const std::string& unit) {
    check_row(matrix.weight(), output, y);
    kernels_of(unit).packed_row(matrix.weight(), output, multiplier, y.data());
}

void dense_row(const DenseMatrix& matrix, std::int64_t output, float multiplier, Vector y, const std::string& unit) {
    check_row(matrix.weight(), output, y);
    kernels_of(unit).dense_row(matrix.weight(), output, multiplier, y.data());
}

std::int32_t code_bits_named(const std::string& codes) {
    if (codes == "fp4 e2m1") return kFp4;
    for (const std::int32_t bits : {2, 3, 4, 8}) {
        if (codes == "int" + std::to_string(bits)) return bits;
    }
    throw std::invalid_argument("codes '" + codes + "' are not one of int2, int3, int4, int8, fp4 e2m1");
}

PackedMatrix::Shape shape_of(const std::string& codes, std::int64_t outputs, std::int64_t inputs, std::int64_t group,
                             std::int64_t inputs_per_scale, const std::string& scale_format, bool has_zeros,
                             float output_scale) {
    return {code_bits_named(codes),           outputs,   inputs,      group, inputs_per_scale,
            scale_format_named(scale_format), has_zeros, output_scale};
}

void bind_packed(nb::module_& module) {
    nb::class_<PackedMatrix>(module, "PackedMatrix", "A quantized matrix in the kernels' layout; owns its memory.")
        .def(
            "__init__",
            [](PackedMatrix* self, const std::string& codes, std::int64_t outputs, std::int64_t inputs,
               std::int64_t group, std::int64_t inputs_per_scale, const std::string& scale_format, bool has_zeros,
               float output_scale) {
                new (self) PackedMatrix(
                    shape_of(codes, outputs, inputs, group, inputs_per_scale, scale_format, has_zeros, output_scale));
            },
            nb::arg("codes"), nb::arg("outputs"), nb::arg("inputs"), nb::arg("group"), nb::arg("inputs_per_scale"),
            nb::arg("scale_format"), nb::arg("has_zeros"), nb::arg("output_scale") = 1.0f,
            nb::call_guard<nb::gil_scoped_release>())
        .def("fill", &fill_packed, nb::arg("words"), nb::arg("row_bytes"), nb::arg("scales"), nb::arg("zeros"),
             nb::arg("first_tile"), nb::arg("end_tile"), nb::call_guard<nb::gil_scoped_release>(),
             "Fill tiles from addresses of the words, scales [outputs, groups] and zeros (or 0).")
        .def_static(
            "bytes_of",
            [](const std::string& codes, std::int64_t outputs, std::int64_t inputs, std::int64_t group,
               std::int64_t inputs_per_scale, const std::string& scale_format, bool has_zeros, float output_scale) {
                return PackedMatrix::num_bytes_of(
                    shape_of(codes, outputs, inputs, group, inputs_per_scale, scale_format, has_zeros, output_scale));
            },
            nb::arg("codes"), nb::arg("outputs"), nb::arg("inputs"), nb::arg("group"), nb::arg("inputs_per_scale"),
            nb::arg("scale_format"), nb::arg("has_zeros"), nb::arg("output_scale") = 1.0f)
        .def_prop_ro("bits", [](const PackedMatrix& m) { return storage_bits(m.weight().bits); })
        .def_prop_ro("outputs", [](const PackedMatrix& m) { return m.weight().outputs; })
        .def_prop_ro("inputs", [](const PackedMatrix& m) { return m.weight().inputs; })
        .def_prop_ro("tiles", [](const PackedMatrix& m) { return m.weight().tiles; })
        .def_prop_ro("group", [](const PackedMatrix& m) { return m.weight().group; })
        .def_prop_ro("num_bytes", &PackedMatrix::num_bytes);
}

void bind_dense(nb::module_& module) {
    nb::class_<DenseMatrix>(module, "DenseMatrix", "A float matrix in the kernels' layout; owns its memory.")
        .def(
            "__init__",
            [](DenseMatrix* self, std::int64_t outputs, std::int64_t inputs, const std::string& format,
               std::int64_t group) { new (self) DenseMatrix({outputs, inputs, dense_format_named(format), group}); },
            nb::arg("outputs"), nb::arg("inputs"), nb::arg("format"), nb::arg("group") = 0,
            nb::call_guard<nb::gil_scoped_release>())
        .def("fill", &fill_dense, nb::arg("values"), nb::arg("row_elements"), nb::arg("scales"), nb::arg("first_tile"),
             nb::arg("end_tile"), nb::call_guard<nb::gil_scoped_release>(),
             "Fill tiles from the addresses of values [outputs, inputs] and scales [outputs, groups] (or 0).")
        .def_static(
            "bytes_of",
            [](std::int64_t outputs, std::int64_t inputs, const std::string& format, std::int64_t group) {
                return DenseMatrix::num_bytes_of({outputs, inputs, dense_format_named(format), group});
            },
            nb::arg("outputs"), nb::arg("inputs"), nb::arg("format"), nb::arg("group") = 0)
        .def_prop_ro("outputs", [](const DenseMatrix& m) { return m.weight().outputs; })
        .def_prop_ro("inputs", [](const DenseMatrix& m) { return m.weight().inputs; })
        .def_prop_ro("tiles", [](const DenseMatrix& m) { return m.weight().tiles; })
        .def_prop_ro("num_bytes", &DenseMatrix::num_bytes);
}

}  // namespace
}  // namespace octavo

void bind_linear(nb::module_& module) {
    using namespace octavo;
    bind_packed(module);
    bind_dense(module);
    module.def("packed_linear", &packed_linear, nb::arg("matrix"), nb::arg("codes").noconvert(),
               nb::arg("scales").noconvert(), nb::arg("sums").noconvert(), nb::arg("first_tile"), nb::arg("end_tile"),
               nb::arg("y").noconvert(), nb::arg("unit") = "");
    module.def("dense_linear", &dense_linear, nb::arg("matrix"), nb::arg("x").noconvert(), nb::arg("first_tile"),
               nb::arg("end_tile"), nb::arg("y").noconvert(), nb::arg("unit") = "");
    module.def("packed_row", &packed_row, nb::arg("matrix"), nb::arg("output"), nb::arg("multiplier"),
               nb::arg("y").noconvert(), nb::arg("unit") = "");
    module.def("dense_row", &dense_row, nb::arg("matrix"), nb::arg("output"), nb::arg("multiplier"),
               nb::arg("y").noconvert(), nb::arg("unit") = "");
}
