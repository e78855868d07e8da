// Memory of keys and values: blocks of a fixed number of positions for every layer (layout: kernels/kv_layer.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/kv_layer.hpp"
#include "program/aligned_memory.hpp"

namespace octavo {

// "float32", "bfloat16", "int8", "int8 calibrated", "fp8" (E4M3, calibrated) or "fp8-e5m2". Throws std::invalid_argument
// for another.
KvFormat kv_format_named(const std::string& name);

class KvStore {
public:
    using Layers = std::vector<std::pair<std::int64_t, std::int64_t>>;  // (num_kv_heads, head_dim)

    using HeadScales = std::vector<std::vector<float>>;  // of each layer: keys' by kv head, then values'

    // All pages are touched now, so that the process does not grow later. `scales` are there for calibrated formats alone.
    // Throws std::invalid_argument unless block_size is a multiple of 16 and there is a positive scale for each head.
    KvStore(const Layers& layers, std::int64_t num_blocks, std::int64_t block_size, KvFormat format,
            HeadScales scales = {});

    static std::int64_t bytes_per_block(const Layers& layers, std::int64_t block_size, KvFormat format);

    const KvLayer& layer(std::int64_t index) const { return layers_.at(static_cast<std::size_t>(index)); }
    std::int64_t num_layers() const { return static_cast<std::int64_t>(layers_.size()); }
    std::int64_t num_blocks() const { return num_blocks_; }
    std::int64_t block_size() const { return block_size_; }
    std::int64_t num_bytes() const { return num_blocks_ * block_bytes_; }
    // All layers of one block. Throws std::out_of_range for a block that is not there.
    void copy_block(std::int64_t source, std::int64_t target);

private:
    // A block's layers lie together, so that copying one is one move:
    //     block 0: | layer 0 | layer 1 | ... |  block 1: | layer 0 | ...
    std::int64_t num_blocks_, block_size_, block_bytes_;
    HeadScales scales_;
    AlignedMemory memory_;
    std::vector<KvLayer> layers_;
};

}  // namespace octavo
