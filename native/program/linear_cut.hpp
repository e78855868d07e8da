// How a matrix product is cut into tasks: panels of output tiles times blocks of rows. No result depends on the cut.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/packed_weight.hpp"
#include "program/instruction.hpp"

namespace octavo {

struct LinearCut {
    std::int64_t num_tiles, panel_tiles, num_rows, row_block;

    // `align` tiles stay together; `num_buffers` results of a task lie in the worker's floats at once.
    static LinearCut of(std::int64_t num_tiles, std::int64_t align, std::int64_t num_rows, int num_threads,
                        std::int64_t num_buffers = 1) {
        constexpr std::int64_t most_rows = 64, tasks_per_thread = 2;
        const std::int64_t floats_per_row = num_buffers * kTileOutputs;  // of one tile
        const std::int64_t fitting_rows = std::max<std::int64_t>(1, kScratchFloats / (floats_per_row * align));
        LinearCut cut{num_tiles, 0, num_rows, std::min({std::max<std::int64_t>(num_rows, 1), most_rows, fitting_rows})};
        const std::int64_t wanted = ceil_div(num_tiles, tasks_per_thread * num_threads);
        const std::int64_t fitting_tiles = kScratchFloats / (floats_per_row * cut.row_block);
        cut.panel_tiles = std::max(align, std::min(ceil_div(wanted, align), fitting_tiles / align) * align);
        return cut;
    }

    std::int64_t num_panels() const { return ceil_div(num_tiles, panel_tiles); }
    std::int64_t num_row_blocks() const { return ceil_div(num_rows, row_block); }
    std::int64_t num_tasks() const { return num_panels() * num_row_blocks(); }

    // Tasks of one panel follow each other: its weights are still in the cache.
    std::int64_t first_tile(std::int64_t task) const { return task / num_row_blocks() * panel_tiles; }
    std::int64_t end_tile(std::int64_t task) const { return std::min(first_tile(task) + panel_tiles, num_tiles); }
    std::int64_t first_row(std::int64_t task) const { return task % num_row_blocks() * row_block; }
    std::int64_t end_row(std::int64_t task) const { return std::min(first_row(task) + row_block, num_rows); }
};

}  // namespace octavo
