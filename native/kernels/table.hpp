// The table of one unit's kernels, from the templates: L gives floats, D the integer dot products.
#pragma once

#include "kernels/attention.hpp"
#include "kernels/attention_fold.hpp"
#include "kernels/dense_linear.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/kernels.hpp"
#include "kernels/kv_write.hpp"
#include "kernels/linear.hpp"
#include "kernels/linear_row.hpp"
#include "kernels/quantize_row.hpp"
#include "kernels/round_row.hpp"

namespace octavo {
namespace {

inline std::size_t scratch_bytes(std::int64_t most_inputs, std::int64_t most_head_dim, std::int64_t most_heads_per_kv,
                                 std::int64_t most_queries) {
    std::size_t most = static_cast<std::size_t>(linear_scratch_bytes(most_inputs));
    const std::size_t others[] = {static_cast<std::size_t>(dense_scratch_bytes()),
                                  attention_scratch_bytes(most_head_dim, most_heads_per_kv, most_queries)};
    for (const std::size_t bytes : others) most = bytes > most ? bytes : most;
    return most;
}

template <typename L, typename D>
Kernels make_kernels() {
    Kernels kernels{};
    kernels.packed_linear = packed_linear<D>;
    kernels.dense_linear = dense_linear<L>;
    kernels.packed_row = packed_row<L>;
    kernels.dense_row = dense_row<L>;
    kernels.quantize_row = quantize_row<L>;
    kernels.round_e4m3 = round_e4m3<L>;
    kernels.rms_norm = rms_norm<L>;
    kernels.add = add<L>;
    kernels.gated = gated<L>;
    kernels.rope = rope<L>;
    kernels.softcap = softcap<L>;
    kernels.write_kv = write_kv<L>;
    kernels.attend_part = attend_part<L>;
    kernels.fold_part = fold_part<L>;
    kernels.finish_part = finish_part<L>;
    kernels.scratch_bytes = scratch_bytes;
    return kernels;
}

}  // namespace
}  // namespace octavo
