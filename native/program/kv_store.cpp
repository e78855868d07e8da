#include "program/kv_store.hpp"

#include <algorithm>
#include <cmath>
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

void check_scales(const KvStore::Layers& layers, KvFormat format, const KvStore::HeadScales& scales) {
    if (scales.size() != (has_head_scales(format) ? layers.size() : 0)) {
        throw std::invalid_argument("calibrated formats have scales for each layer, others none");
    }
    for (std::size_t i = 0; i < scales.size(); ++i) {
        const bool is_whole = static_cast<std::int64_t>(scales[i].size()) == 2 * layers[i].first;
        const auto is_usable = [](float scale) { return std::isnormal(scale) && scale > 0; };
        if (!is_whole || !std::all_of(scales[i].begin(), scales[i].end(), is_usable)) {
            throw std::invalid_argument("layer " + std::to_string(i) + ": " + std::to_string(2 * layers[i].first) +
                                        " positive scales are needed, keys' and values' of each kv head");
        }
    }
}

std::int64_t layer_bytes(const KvLayer& layer) { return round_up(layer.num_kv_heads * layer.head_bytes(), kLineBytes); }

}  // namespace

KvFormat kv_format_named(const std::string& name) {
    if (name == "float32") return KvFormat::f32;
    if (name == "bfloat16") return KvFormat::bf16;
    if (name == "int8") return KvFormat::int8;
    if (name == "int8 calibrated") return KvFormat::int8_fixed;
    if (name == "fp8") return KvFormat::e4m3;
    if (name == "fp8-e5m2") return KvFormat::e5m2;
    throw std::invalid_argument("KV format '" + name +
                                "' is not one of float32, bfloat16, int8, int8 calibrated, fp8, fp8-e5m2");
}

std::int64_t KvStore::bytes_per_block(const Layers& layers, std::int64_t block_size, KvFormat format) {
    std::int64_t num_bytes = 0;
    for (const auto& shape : layers) num_bytes += layer_bytes(layer_of(shape, block_size, format));
    return num_bytes;
}

KvStore::KvStore(const Layers& layers, std::int64_t num_blocks, std::int64_t block_size, KvFormat format,
                 HeadScales scales)
    : num_blocks_(num_blocks),
      block_size_(block_size),
      block_bytes_(bytes_per_block(layers, block_size, format)),
      scales_(std::move(scales)) {
    check_scales(layers, format, scales_);
    if (block_size < 16 || block_size % 16 != 0) throw std::invalid_argument("block_size must be a multiple of 16");
    if (num_blocks < 1) throw std::invalid_argument("num_blocks must be at least 1");
    memory_ = AlignedMemory(static_cast<std::size_t>(num_bytes()));
    std::byte* base = memory_.data();
    for (const auto& shape : layers) {
        KvLayer layer = layer_of(shape, block_size, format);
        layer.base = base;
        layer.block_bytes = block_bytes_;
        if (has_head_scales(format)) layer.head_scales = scales_[layers_.size()].data();
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
