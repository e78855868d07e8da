// The Python module `octavo.ops.native._kernels`. Arrays come through DLPack or the buffer protocol, so numpy and
// torch both work and neither is linked. Shapes are checked here, meaning is checked in Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "cpu_features.hpp"
#include "kernel_units.hpp"

namespace nb = nanobind;

void bind_sampling(nb::module_& module);

namespace {

template <typename Scalar>
using Matrix = nb::ndarray<Scalar, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

std::int64_t quantize_activations(Matrix<const float> x, Matrix<std::int8_t> codes, Matrix<float> scales,
                                  const std::string& unit_name) {
    const std::size_t rows = x.shape(0), columns = x.shape(1), groups = scales.shape(1);
    if (codes.shape(0) != rows || codes.shape(1) != columns) {
        throw std::invalid_argument("codes must have the shape of x");
    }
    if (scales.shape(0) != rows || groups == 0 || columns % groups != 0) {
        throw std::invalid_argument("scales must be [rows, groups] with a number of groups that divides the columns");
    }
    const octavo::KernelUnit& unit = unit_name.empty() ? octavo::best_unit() : octavo::unit_named(unit_name);
    nb::gil_scoped_release unlocked;
    return unit.quantize_activations(x.data(), static_cast<std::int64_t>(rows * groups),
                                     static_cast<std::int64_t>(columns / groups), codes.data(), scales.data());
}

nb::list list_units() {
    nb::list units;
    for (const octavo::KernelUnit& unit : octavo::kernel_units()) {
        units.append(nb::make_tuple(unit.name, unit.needs, unit.available));
    }
    return units;
}

}  // namespace

NB_MODULE(_kernels, module) {
    module.def("quantize_activations", &quantize_activations, nb::arg("x").noconvert(), nb::arg("codes").noconvert(),
               nb::arg("scales").noconvert(), nb::arg("unit") = "",
               "Fill codes and scales; returns the first group with NaN or infinity, or -1.");
    module.def("kernel_units", &list_units, "(name, needed feature, runs here) of each unit, slowest first.");
    module.def("best_unit", [] { return std::string(octavo::best_unit().name); });
    bind_sampling(module);
    module.def("cpu_features", &octavo::cpu_feature_names, "Features the processor has and the system lets us use.");
}
