#include "kernel_units.hpp"

#include <algorithm>
#include <sstream>
#include <stdexcept>

#include "cpu_features.hpp"
#include "self_test/self_test.hpp"

namespace octavo {

namespace {

std::string join(const std::vector<std::string>& words) {
    std::string joined;
    for (const std::string& word : words) joined += (joined.empty() ? "" : ", ") + word;
    return joined;
}

std::vector<std::string> missing_features(const char* needs) {
    const std::vector<std::string> there = cpu_feature_names();
    std::vector<std::string> missing;
    std::istringstream words(needs);
    for (std::string name; words >> name;) {
        if (std::find(there.begin(), there.end(), name) == there.end()) missing.push_back(name);
    }
    return missing;
}

// Why a unit cannot be used, "" if it can. Its code is touched only where its features are there.
std::string trouble_with(const char* needs, const Kernels& (*kernels)()) {
    const std::vector<std::string> missing = missing_features(needs);
    if (!missing.empty()) return "this processor or system lacks " + join(missing);
    const std::string failure = self_test(kernels(), portable_kernels(), quick_cases());
    return failure.empty() ? "" : "it failed its self test: " + failure;
}

KernelUnit make_unit(const char* name, const char* needs, const Kernels& (*kernels)()) {
    const std::string reason = trouble_with(needs, kernels);
    return {name, needs, reason.empty(), reason, reason.empty() ? &kernels() : nullptr};
}

}  // namespace

const std::vector<KernelUnit>& kernel_units() {
    static const std::vector<KernelUnit> units = {
        {"portable", "", true, "", &portable_kernels()},
#if defined(OCTAVO_X86_UNITS)
        make_unit("avx2", "avx2 fma f16c", avx2_kernels),
        make_unit("avx512", "avx2 fma f16c avx512f avx512bw avx512_vnni", avx512_kernels),
        make_unit("amx", "avx2 fma f16c avx512f avx512bw avx512_vnni amx_tile amx_int8", amx_kernels),
#elif defined(OCTAVO_ARM_UNITS)
        make_unit("neon", "neon neon_dotprod", neon_kernels),
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
    std::string why = "this build has none of that name";
    std::vector<std::string> runnable;
    for (const KernelUnit& unit : kernel_units()) {
        if (name == unit.name && unit.available) return unit;
        if (name == unit.name) why = unit.reason;
        if (unit.available) runnable.emplace_back(unit.name);
    }
    throw std::invalid_argument("kernel unit '" + name + "' cannot run here: " + why +
                                "; these can: " + join(runnable));
}

}  // namespace octavo
