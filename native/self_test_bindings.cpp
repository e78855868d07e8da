// For tests: the self test of a unit that runs here, with few cases or all, and of units that are broken on purpose.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cmath>
#include <csignal>
#include <stdexcept>

#include "kernel_units.hpp"
#include "self_test/self_test.hpp"

namespace nb = nanobind;

namespace {

std::string run_self_test(const std::string& unit, bool thorough) {
    const octavo::Kernels& kernels = *octavo::unit_named(unit).kernels;
    return octavo::self_test(kernels, octavo::portable_kernels(),
                             thorough ? octavo::thorough_cases() : octavo::quick_cases());
}

std::uint64_t digest_of(const std::string& unit) {
    return octavo::answers_digest(*octavo::unit_named(unit).kernels, octavo::thorough_cases());
}

void refused_add(const float*, std::int64_t, float*) { std::raise(SIGILL); }
void faulting_add(const float*, std::int64_t, float*) { std::raise(SIGSEGV); }
void forgetful_add(const float*, std::int64_t, float*) {}
// The last value is one unit in the last place too large.
void inexact_add(const float* x, std::int64_t features, float* y) {
    octavo::portable_kernels().add(x, features, y);
    y[features - 1] = std::nextafter(y[features - 1], HUGE_VALF);
}

std::string run_broken_self_test(const std::string& how) {
    octavo::Kernels kernels = octavo::portable_kernels();
    if (how == "refused")
        kernels.add = refused_add;
    else if (how == "faulting")
        kernels.add = faulting_add;
    else if (how == "forgetful")
        kernels.add = forgetful_add;
    else if (how == "inexact")
        kernels.add = inexact_add;
    else if (how != "not")
        throw std::invalid_argument("how must be refused, faulting, forgetful, inexact or not");
    return octavo::self_test(kernels, octavo::portable_kernels(), octavo::quick_cases());
}

}  // namespace

void bind_self_test(nb::module_& module) {
    module.def("self_test", &run_self_test, nb::arg("unit"), nb::arg("thorough") = false,
               "Compares a unit with the portable one, bit for bit; what differs, or \"\".");
    module.def("answers_digest", &digest_of, nb::arg("unit"), "A hash of what a unit answers to all cases.");
    module.def("broken_self_test", &run_broken_self_test, nb::arg("how"),
               "The same of the portable unit with another addition: refused, faulting, forgetful, inexact or not.");
}
