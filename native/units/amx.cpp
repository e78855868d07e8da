// Built with what the avx512 unit needs, and AMX: the avx512 unit with another linear for many rows.
#include "kernel_units.hpp"
#include "kernels/linear_amx.hpp"
#include "kernels/table.hpp"

namespace octavo {
namespace {

std::size_t scratch_bytes_with_panel(std::int64_t most_inputs, std::int64_t most_head_dim,
                                     std::int64_t most_heads_per_kv, std::int64_t most_queries) {
    const std::size_t others = scratch_bytes(most_inputs, most_head_dim, most_heads_per_kv, most_queries);
    const std::size_t panel = amx_scratch_bytes(most_inputs);
    return panel > others ? panel : others;
}

Kernels make_amx_kernels() {
    Kernels kernels = make_kernels<Avx512, DotAvx512>();
    kernels.packed_linear = packed_linear_amx;
    kernels.scratch_bytes = scratch_bytes_with_panel;
    return kernels;
}

}  // namespace

const Kernels& amx_kernels() {
    static const Kernels kernels = make_amx_kernels();
    return kernels;
}

}  // namespace octavo
