// Built with AVX512F, AVX512BW and AVX512_VNNI.
#include "kernel_units.hpp"
#include "kernels/dot_avx512.hpp"
#include "kernels/table.hpp"

namespace octavo {

const Kernels& avx512_kernels() {
    static const Kernels kernels = make_kernels<Avx512, DotAvx512>();
    return kernels;
}

}  // namespace octavo
