// Built for Armv8.2 with dotprod.
#include "kernel_units.hpp"
#include "kernels/dot_neon.hpp"
#include "kernels/table.hpp"

namespace octavo {

const Kernels& neon_kernels() {
    static const Kernels kernels = make_kernels<Neon, DotNeon>();
    return kernels;
}

}  // namespace octavo
