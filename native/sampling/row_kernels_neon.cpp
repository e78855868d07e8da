#include "lanes/neon.hpp"
#include "sampling/row_kernels_over.hpp"
#include "sampling/row_kernels_units.hpp"

namespace octavo {

RowKernels row_kernels_neon(bool available) { return row_kernels_over<Neon>("neon", "neon", available); }

}  // namespace octavo
