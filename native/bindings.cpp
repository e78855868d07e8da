// The Python module `octavo.ops.native._kernels`. Arrays come through DLPack or the buffer protocol, so numpy and
// torch both work and neither is linked. Shapes are checked in the bindings, meaning is checked in Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "cpu_features.hpp"
#include "kernel_units.hpp"

namespace nb = nanobind;

void bind_attention(nb::module_& module);
void bind_elementwise(nb::module_& module);
void bind_linear(nb::module_& module);
void bind_program(nb::module_& module);
void bind_self_test(nb::module_& module);
void bind_sampling(nb::module_& module);

namespace {

nb::list list_units() {
    nb::list units;
    for (const octavo::KernelUnit& unit : octavo::kernel_units()) {
        units.append(nb::make_tuple(unit.name, unit.needs, unit.available, unit.reason));
    }
    return units;
}

}  // namespace

NB_MODULE(_kernels, module) {
    // What still lives when the interpreter ends is the interpreter's business, not a leak worth a page of text.
    nb::set_leak_warnings(false);
    module.def("kernel_units", &list_units, "(name, needed features, runs here, why not) of each unit, slowest first.");
    module.def("best_unit", [] { return std::string(octavo::best_unit().name); });
    bind_attention(module);
    bind_elementwise(module);
    bind_linear(module);
    bind_program(module);
    bind_self_test(module);
    bind_sampling(module);
    module.def("cpu_features", &octavo::cpu_feature_names, "Features the processor has and the system lets us use.");
}
