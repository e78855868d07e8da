// Which kernel units this build holds, and which of them this processor can run.
#pragma once

#include <string>
#include <vector>

#include "quantize_activations.hpp"

namespace octavo {

struct KernelUnit {
    const char* name;
    const char* needs;  // the processor feature it needs, "" for none
    bool available;     // on this processor
    QuantizeActivations quantize_activations;
};

// All units of this build, slowest first; the last available one is the one to use.
const std::vector<KernelUnit>& kernel_units();

const KernelUnit& best_unit();

// By name. Throws std::invalid_argument, naming the units that can run, if it is unknown or cannot run here.
const KernelUnit& unit_named(const std::string& name);

}  // namespace octavo
