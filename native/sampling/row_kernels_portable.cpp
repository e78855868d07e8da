#include "lanes/portable.hpp"
#include "sampling/row_kernels_over.hpp"
#include "sampling/row_kernels_units.hpp"

namespace octavo {

RowKernels row_kernels_portable(bool available) { return row_kernels_over<Portable>("portable", "", available); }

}  // namespace octavo
