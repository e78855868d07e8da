// Built with AMX on top of what the avx512 unit needs: that unit with another linear for many rows.
#include "kernel_units.hpp"
#include "kernels/linear_amx.hpp"

namespace octavo {
namespace {

// From so many rows on a panel is unpacked for AMX. For fewer VNNI does less work in all.
constexpr std::int64_t kLeastRows = 9;
// Activations of the rows that are done together: they stay in a second-level cache (2 MiB where there is AMX) from
// tile to tile, and are enough for the unpacking not to count.
constexpr std::int64_t kBlockBytes = 512 * 1024, kLeastBlockRows = 64;

std::int64_t block_rows(std::int64_t row_bytes) {
    const std::int64_t rows = kBlockBytes / row_bytes / kAmxRows * kAmxRows;
    return rows > kLeastBlockRows ? rows : kLeastBlockRows;
}

void packed_linear(const PackedWeight& weight, const QuantizedRows& x, std::int64_t num_rows, std::int64_t first_tile,
                   std::int64_t end_tile, Rows y, std::byte* scratch) {
    const std::int64_t block = block_rows(x.padded);
    for (std::int64_t row = 0; row < num_rows; row += block) {
        const std::int64_t rows = lesser(block, num_rows - row);
        const auto linear = rows < kLeastRows ? avx512_kernels().packed_linear : many_rows_amx;
        linear(weight, x.from(row), rows, first_tile, end_tile, y.from(row), scratch);
    }
}

std::size_t scratch_bytes(std::int64_t most_inputs, std::int64_t most_head_dim, std::int64_t most_heads_per_kv,
                          std::int64_t most_queries) {
    const std::size_t panel = amx_scratch_bytes(most_inputs);
    const std::size_t others =
        avx512_kernels().scratch_bytes(most_inputs, most_head_dim, most_heads_per_kv, most_queries);
    return panel > others ? panel : others;
}

Kernels make_kernels() {
    Kernels kernels = avx512_kernels();
    kernels.packed_linear = packed_linear;
    kernels.scratch_bytes = scratch_bytes;
    return kernels;
}

}  // namespace

const Kernels& amx_kernels() {
    static const Kernels kernels = make_kernels();
    return kernels;
}

}  // namespace octavo
