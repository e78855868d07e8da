// Any processor: the definition that the other units must equal.
#include "lanes/portable.hpp"
#include "kernel_units.hpp"
#include "kernels/dot_portable.hpp"
#include "kernels/table.hpp"

namespace octavo {

const Kernels& portable_kernels() {
    static const Kernels kernels = make_kernels<Portable, DotPortable>();
    return kernels;
}

}  // namespace octavo
