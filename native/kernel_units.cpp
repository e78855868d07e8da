#include "kernel_units.hpp"

#include <stdexcept>

#include "cpu_features.hpp"

namespace octavo {

const std::vector<KernelUnit>& kernel_units() {
    static const std::vector<KernelUnit> units = {
        {"portable", "", true, quantize_activations_portable},
#if defined(OCTAVO_X86_UNITS)
        {"avx2", "avx2", cpu_features().avx2, quantize_activations_avx2},
        {"avx512", "avx512f", cpu_features().avx512f, quantize_activations_avx512},
#endif
    };
    return units;
}

const KernelUnit& best_unit() {
    const KernelUnit* best = &kernel_units().front();
    for (const KernelUnit& unit : kernel_units()) {
        if (unit.available) best = &unit;
    }
    return *best;
}

const KernelUnit& unit_named(const std::string& name) {
    std::string runnable;
    for (const KernelUnit& unit : kernel_units()) {
        if (!unit.available) continue;
        if (name == unit.name) return unit;
        runnable += (runnable.empty() ? "" : ", ") + std::string(unit.name);
    }
    throw std::invalid_argument("kernel unit '" + name + "' cannot run here; these can: " + runnable);
}

}  // namespace octavo
