#include "program/kv_store.hpp"

#include <cstring>
#include <stdexcept>

#include "kernels/rows.hpp"

namespace octavo {
namespace {

constexpr std::int64_t kLineBytes = 64;

KvLayer layer_of(std::pair<std::int64_t, std::int64_t> shape, std::int64_t block_size, KvFormat format) {
    KvLayer layer;
    layer.block_size = block_size;
    layer.num_kv_heads = shape.first;
    layer.head_dim = shape.second;
    layer.format = format;
    return layer;
}

std::int64_t layer_bytes(const KvLayer& layer) { return round_up(layer.num_kv_heads * layer.head_bytes(), kLineBytes); }

}  // namespace

KvFormat kv_format_named(const std::string& name) {
    if (name == "float32") return KvFormat::f32;
    if (name == "bfloat16") return KvFormat::bf16;
    if (name == "int8") return KvFormat::int8;
    throw std::invalid_argument("KV format '" + name + "' is not one of float32, bfloat16, int8");
}

std::int64_t KvStore::bytes_per_block(const Layers& layers, std::int64_t block_size, KvFormat format) {
    std::int64_t num_bytes = 0;
    for (const auto& shape : layers) num_bytes += layer_bytes(layer_of(shape, block_size, format));
    return num_bytes;
}

KvStore::KvStore(const Layers& layers, std::int64_t num_blocks, std::int64_t block_size, KvFormat format)
    : num_blocks_(num_blocks), block_size_(block_size), block_bytes_(bytes_per_block(layers, block_size, format)) {
    if (block_size < 16 || block_size % 16 != 0) throw std::invalid_argument("block_size must be a multiple of 16");
    if (num_blocks < 1) throw std::invalid_argument("num_blocks must be at least 1");
    memory_ = AlignedMemory(static_cast<std::size_t>(num_bytes()));
    std::byte* base = memory_.data();
    for (const auto& shape : layers) {
        KvLayer layer = layer_of(shape, block_size, format);
        layer.base = base;
        layer.block_bytes = block_bytes_;
        layers_.push_back(layer);
        base += layer_bytes(layer);
    }
}

void KvStore::copy_block(std::int64_t source, std::int64_t target) {
    if (source < 0 || source >= num_blocks_ || target < 0 || target >= num_blocks_) {
        throw std::out_of_range("there is no such block");
    }
    std::memmove(memory_.data() + target * block_bytes_, memory_.data() + source * block_bytes_,
                 static_cast<std::size_t>(block_bytes_));
}

}  // namespace octavo
