// Which kernel units this build holds, and which of them this processor can run.
#pragma once

#include <string>
#include <vector>

#include "kernels/kernels.hpp"

namespace octavo {

// Each in native/units/<name>.cpp, compiled with the flags of its instruction set: calling one that the processor does
// not support is already too much.
const Kernels& portable_kernels();
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();
const Kernels& amx_kernels();
const Kernels& neon_kernels();

struct KernelUnit {
    const char* name;
    const char* needs;       // the processor features it needs, separated by spaces
    bool available;          // on this processor, and it passed its self test
    std::string reason;      // why it is not available; "" if it is
    const Kernels* kernels;  // null if it is not available
};

// All units of this build, slowest first; the last available one is the one to use. The first call tests them.
const std::vector<KernelUnit>& kernel_units();

const KernelUnit& best_unit();

// By name. Throws std::invalid_argument, naming the units that can run, if it is unknown or cannot run here.
const KernelUnit& unit_named(const std::string& name);

}  // namespace octavo
