// One step as the instructions see it: rows of tokens, chunk after chunk.
#pragma once

#include <cstdint>
#include <vector>

namespace octavo {

// `num_rows` consecutive tokens of one sequence in rows from `first_row`, standing at positions from `start`.
struct ChunkView {
    std::int64_t first_row = 0, num_rows = 0, start = 0;
    const std::int32_t* block_table = nullptr;
};

struct StepView {
    std::vector<std::int32_t> tokens;      // [rows]
    std::vector<std::int32_t> positions;   // [rows]
    std::vector<std::int32_t> row_blocks;  // [rows]  block of the row's position
    std::vector<ChunkView> chunks;
    std::vector<std::int32_t> logit_rows;  // rows whose logits are wanted, ascending
    float* logits = nullptr;               // [logit rows, vocabulary]
    std::int64_t vocabulary = 0;

    std::int64_t num_rows() const { return static_cast<std::int64_t>(tokens.size()); }
    std::int64_t num_logit_rows() const { return static_cast<std::int64_t>(logit_rows.size()); }
};

}  // namespace octavo
