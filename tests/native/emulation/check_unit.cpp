// Compares one unit with the portable one over every case, bit for bit; the unit is named by -DOCTAVO_UNIT=..._kernels.
// Prints what differs, then `cases`, `differ` and `digest` (of the portable unit's answers).
#include <cstdio>

#include "kernel_units.hpp"
#include "self_test/self_test.hpp"

int main() {
    octavo::KernelCases cases = octavo::thorough_cases();
    const octavo::Kernels &unit = octavo::OCTAVO_UNIT(), &portable = octavo::portable_kernels();
    const auto digest = static_cast<unsigned long long>(octavo::answers_digest(portable, cases));
    int differ = 0;
    for (auto& problem : cases) {
        octavo::KernelCases one;
        one.push_back(std::move(problem));
        const std::string trouble = octavo::self_test(unit, portable, one);
        if (trouble.empty()) continue;
        ++differ;
        std::printf("%s\n", trouble.c_str());
    }
    std::printf("cases %zu\ndiffer %d\ndigest %016llx\n", cases.size(), differ, digest);
    return differ != 0;
}
