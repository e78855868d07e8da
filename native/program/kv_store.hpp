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

// "float32", "bfloat16" or "int8". Throws std::invalid_argument for another.
KvFormat kv_format_named(const std::string& name);

class KvStore {
public:
    using Layers = std::vector<std::pair<std::int64_t, std::int64_t>>;  // (num_kv_heads, head_dim)

    // All pages are touched now, so that the process does not grow later.
    // Throws std::invalid_argument unless block_size is a multiple of 16.
    KvStore(const Layers& layers, std::int64_t num_blocks, std::int64_t block_size, KvFormat format);

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
    AlignedMemory memory_;
    std::vector<KvLayer> layers_;
};

}  // namespace octavo
