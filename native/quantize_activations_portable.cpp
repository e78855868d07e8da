// Any processor; the definition that the other units must equal.
#include "group_arithmetic.hpp"
#include "quantize_activations.hpp"

namespace octavo {

std::int64_t quantize_activations_portable(const float* x, std::int64_t num_groups, std::int64_t group_size,
                                           std::int8_t* codes, float* scales) {
    for (std::int64_t group = 0; group < num_groups; ++group, x += group_size, codes += group_size) {
        std::uint32_t absmax_bits = 0;
        for (std::int64_t i = 0; i < group_size; ++i) {
            const std::uint32_t bits = magnitude_bits(x[i]);
            absmax_bits = bits > absmax_bits ? bits : absmax_bits;
        }
        if (absmax_bits >= kInfinityBits) return group;
        const GroupScale grid = group_scale(absmax_bits);
        scales[group] = grid.scale;
        for (std::int64_t i = 0; i < group_size; ++i) codes[i] = round_code(x[i] * grid.inverse);
    }
    return -1;
}

}  // namespace octavo
