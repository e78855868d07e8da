// One function for each unit, in a file of its own with the flags of its instruction set.
#pragma once

#include "sampling/row_kernels.hpp"

namespace octavo {

RowKernels row_kernels_portable(bool available);
RowKernels row_kernels_avx2(bool available);
RowKernels row_kernels_avx512(bool available);
RowKernels row_kernels_neon(bool available);

}  // namespace octavo
