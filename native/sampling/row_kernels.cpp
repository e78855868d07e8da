#include "sampling/row_kernels.hpp"

#include <stdexcept>

#include "cpu_features.hpp"
#include "sampling/row_kernels_units.hpp"

namespace octavo {

const std::vector<RowKernels>& row_kernels() {
    static const CpuFeatures& cpu = cpu_features();
    static const std::vector<RowKernels> units = {
        row_kernels_portable(true),
#if defined(OCTAVO_X86_UNITS)
        row_kernels_avx2(cpu.avx2 && cpu.fma && cpu.f16c),
        row_kernels_avx512(cpu.avx512f),
#elif defined(OCTAVO_ARM_UNITS)
        row_kernels_neon(cpu.neon),
#endif
    };
    return units;
}

const RowKernels& row_kernels_named(const std::string& name) {
    const RowKernels* found = nullptr;
    std::string runnable;
    for (const RowKernels& unit : row_kernels()) {
        if (!unit.available) continue;
        if (name.empty() || name == unit.name) found = &unit;
        runnable += (runnable.empty() ? "" : ", ") + std::string(unit.name);
    }
    if (!found) throw std::invalid_argument("unit '" + name + "' cannot run here; these can: " + runnable);
    return *found;
}

}  // namespace octavo
