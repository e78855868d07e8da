#include "lanes/avx512.hpp"
#include "sampling/row_kernels_over.hpp"
#include "sampling/row_kernels_units.hpp"

namespace octavo {

RowKernels row_kernels_avx512(bool available) { return row_kernels_over<Avx512>("avx512", "avx512f", available); }

}  // namespace octavo
