// Cutting rows into register blocks.
#pragma once

#include <cstdint>

namespace octavo {
namespace {

// Calls block.operator()<rows>(first_row) for blocks of `most` rows, then for the rest in one.
template <int most, typename Block>
void for_row_blocks(std::int64_t num_rows, const Block& block) {
    std::int64_t row = 0;
    for (; row + most <= num_rows; row += most) block.template operator()<most>(row);
    if constexpr (most > 1) {
        if (row < num_rows) {
            for_row_blocks<most - 1>(
                num_rows - row, [&]<int rows>(std::int64_t first) { block.template operator()<rows>(row + first); });
        }
    }
}

}  // namespace
}  // namespace octavo
