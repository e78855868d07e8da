// The kernels of one unit: the same set for every instruction set, called by the step program through this table.
//
// None of them allocates, locks or knows of threads; a caller gives disjoint outputs. `scratch` is the calling thread's
// own memory of at least `scratch_bytes`.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention_item.hpp"
#include "kernels/kv_layer.hpp"
#include "kernels/packed_weight.hpp"
#include "kernels/rows.hpp"

namespace octavo {

enum class ActivationKind : std::int32_t { silu, gelu_tanh };

struct Kernels {
    // y[row, 16 (tile - first_tile) + lane] for rows [0, num_rows) of x and tiles [first_tile, end_tile). Writes whole tiles
    // only up to `weight.outputs`. Chooses its few-row or many-row path; both give the same bits.
    void (*packed_linear)(const PackedWeight& weight, const QuantizedRows& x, std::int64_t num_rows,
                          std::int64_t first_tile, std::int64_t end_tile, Rows y, std::byte* scratch);
    void (*dense_linear)(const DenseWeight& weight, ConstRows x, std::int64_t num_rows, std::int64_t first_tile,
                         std::int64_t end_tile, Rows y, std::byte* scratch);
    // One row of a weight as floats times `multiplier` (an embedding lookup).
    void (*packed_row)(const PackedWeight& weight, std::int64_t output, float multiplier, float* y);
    void (*dense_row)(const DenseWeight& weight, std::int64_t output, float multiplier, float* y);

    // One row: quantize `features` floats into row `row` of `out`, from feature `first` (a multiple of out.group). All of
    // the row where the scale is the row's.
    void (*quantize_row)(const float* x, std::int64_t features, const QuantizedRows& out, std::int64_t row,
                         std::int64_t first);
    // x rounded to E4M3 times a scale, in place: `fixed_scale`, or, if that is 0, the row's own (x is all of it then).
    void (*round_e4m3)(float* x, std::int64_t features, float fixed_scale);
    // y = x / sqrt(mean(x^2) + eps) * weight; y may be x.
    void (*rms_norm)(const float* x, const float* weight, float eps, std::int64_t features, float* y);
    // y += x, y may have a tail.
    void (*add)(const float* x, std::int64_t features, float* y);
    // gate = activation(gate) * up
    void (*gated)(float* gate, const float* up, std::int64_t features, ActivationKind kind);
    // Rotate the first 2 * half features of one head in place (halves convention): cos, sin [half].
    void (*rope)(float* head, const float* cos, const float* sin, std::int64_t half);
    // x = softcap * tanh(x / softcap)
    void (*softcap)(float* x, std::int64_t features, float softcap);

    // Store one token's key and value of one head at position `offset` of `block`. Either may be null: it is left alone.
    void (*write_kv)(const KvLayer& layer, std::int64_t block, std::int64_t offset, std::int64_t head, const float* key,
                     const float* value);
    // Keys [first, end) of one part (positions, first a multiple of kKeyTile, end at most the part's end).
    void (*attend_part)(const AttentionShape& shape, const KvLayer& layer, const AttentionItem& item,
                        std::int64_t first, std::int64_t end, const AttentionPart& out, std::byte* scratch);
    // into = into joined with the next part, for `num_rows` (query, head) rows; parts are folded in ascending order.
    void (*fold_part)(std::int64_t head_dim, std::int64_t num_rows, const AttentionPart& into,
                      const AttentionPart& part);
    // Divide by the totals: row query * heads_per_kv + head goes to y + query * y_stride + head * head_dim.
    void (*finish_part)(const AttentionShape& shape, const AttentionPart& part, std::int64_t num_queries, float* y,
                        std::int64_t y_stride);

    // Bytes of scratch that any of the above needs, for these limits.
    std::size_t (*scratch_bytes)(std::int64_t most_inputs, std::int64_t most_head_dim, std::int64_t most_heads_per_kv,
                                 std::int64_t most_queries);
};

}  // namespace octavo
