// Built with AVX2, FMA and F16C (x86-64-v3).
#include "lanes/avx2.hpp"
#include "kernel_units.hpp"
#include "kernels/dot_avx2.hpp"
#include "kernels/table.hpp"

namespace octavo {

const Kernels& avx2_kernels() {
    static const Kernels kernels = make_kernels<Avx2, DotAvx2>();
    return kernels;
}

}  // namespace octavo
