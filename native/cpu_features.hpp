// What the processor offers and the operating system lets us use.
#pragma once

#include <string>
#include <vector>

namespace octavo {

struct CpuFeatures {
    bool avx = false;
    bool fma = false;
    bool f16c = false;
    bool avx2 = false;
    bool avx512f = false;
    bool avx512bw = false;
    bool avx512vl = false;
    bool avx512_vnni = false;
    bool avx512_bf16 = false;
    bool amx_tile = false;
    bool amx_int8 = false;
    bool amx_bf16 = false;
    bool neon = false;
    bool neon_dotprod = false;
};

// Read once, with CPUID or from the auxiliary vector; a feature whose registers the operating system does not save counts
// as absent. Linux saves AMX tiles only for processes that ask: this asks, once, and a refusal counts as absent too.
const CpuFeatures& cpu_features();

// The names of the features that are there, lowest first.
std::vector<std::string> cpu_feature_names();

}  // namespace octavo
