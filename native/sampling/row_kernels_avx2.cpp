#include "lanes/avx2.hpp"
#include "sampling/row_kernels_over.hpp"
#include "sampling/row_kernels_units.hpp"

namespace octavo {

RowKernels row_kernels_avx2(bool available) { return row_kernels_over<Avx2>("avx2", "avx2 fma f16c", available); }

}  // namespace octavo
