// Cases of attention: keys and values are written, attended part by part, folded and finished.
#include <algorithm>
#include <cstring>

#include "self_test/case_numbers.hpp"
#include "self_test/cases.hpp"

namespace octavo {
namespace {

// Small enough that some of the numbers, in [-2, 2), are clamped: int8 at 1.9, E4M3 at 1.3.
constexpr float kCaseScales[] = {0.0149f, 0.003f};

class AttentionCase : public KernelCase {
public:
    explicit AttentionCase(const AttentionCaseShape& s)
        : shape_(s),
          rows_(s.queries * s.heads_per_kv),
          blocks_((s.positions + s.block_size - 1) / s.block_size),
          numbers_(static_cast<std::uint64_t>(s.positions + s.head_dim)),
          q_(numbers_.values(rows_ * s.head_dim)),
          keys_(numbers_.values(s.positions * s.head_dim)),
          values_(numbers_.values(s.positions * s.head_dim)) {
        layer_.block_size = s.block_size, layer_.head_dim = s.head_dim, layer_.format = s.format;
        layer_.num_kv_heads = 1;
        if (has_head_scales(s.format)) layer_.head_scales = kCaseScales;
        layer_.block_bytes = round_up(layer_.head_bytes(), 64);
        // Blocks lie in memory in reverse, on cache lines.
        memory_.resize(static_cast<std::size_t>(layer_.block_bytes * blocks_ + 64));
        const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
        layer_.base = memory_.data() + (64 - address % 64) % 64;
        for (std::int64_t i = 0; i < blocks_; ++i) block_table_.push_back(static_cast<std::int32_t>(blocks_ - 1 - i));
        part_.resize(static_cast<std::size_t>(part_floats()));
    }
    std::string name() const override {
        const char* formats[] = {"f32", "bf16", "int8", "int8 fixed", "e4m3", "e5m2"};
        const auto text = [](auto number) { return std::to_string(number); };
        return std::string("attention ") + formats[static_cast<int>(shape_.format)] +
               " heads=" + text(shape_.heads_per_kv) + " head_dim=" + text(shape_.head_dim) +
               " block=" + text(shape_.block_size) + " positions=" + text(shape_.positions) +
               " queries=" + text(shape_.queries) + " window=" + text(shape_.window) +
               " softcap=" + text(shape_.softcap);
    }
    // The finished rows, then what was folded, with its maxima and totals.
    std::size_t answer_size() const override {
        return static_cast<std::size_t>(rows_ * shape_.head_dim + part_floats());
    }

    void run(const Kernels& kernels, float* answer, std::byte* scratch) override {
        std::fill(memory_.begin(), memory_.end(), std::byte{0});
        for (std::int64_t position = 0; position < shape_.positions; ++position) write(kernels, position);
        const AttentionPart folded = part_at(answer + rows_ * shape_.head_dim), next = part_at(part_.data());
        const AttentionShape shape = attention_shape();
        for (std::int64_t first = 0; first < shape_.positions; first += kKeyPart) {
            const std::int64_t end = std::min(first + kKeyPart, shape_.positions);
            kernels.attend_part(shape, layer_, item(), first, end, first == 0 ? folded : next, scratch);
            if (first > 0) kernels.fold_part(shape_.head_dim, rows_, folded, next);
        }
        kernels.finish_part(shape, folded, shape_.queries, answer, shape_.heads_per_kv * shape_.head_dim);
    }

private:
    std::int64_t part_floats() const { return rows_ * (shape_.head_dim + 2); }
    AttentionPart part_at(float* memory) const {
        return {memory, memory + rows_ * shape_.head_dim, memory + rows_ * (shape_.head_dim + 1)};
    }
    AttentionShape attention_shape() const {
        return {shape_.heads_per_kv, 1, shape_.head_dim, 0.125f, shape_.softcap, shape_.window};
    }
    // The last queries.
    AttentionItem item() const {
        return {q_.data(),
                shape_.heads_per_kv * shape_.head_dim,
                shape_.queries,
                shape_.positions - shape_.queries,
                0,
                block_table_.data()};
    }
    void write(const Kernels& kernels, std::int64_t position) const {
        const std::int64_t block = block_table_[static_cast<std::size_t>(position / shape_.block_size)];
        const std::int64_t at = position * shape_.head_dim;
        kernels.write_kv(layer_, block, position % shape_.block_size, 0, keys_.data() + at, values_.data() + at);
    }

    AttentionCaseShape shape_;
    std::int64_t rows_, blocks_;
    CaseNumbers numbers_;
    std::vector<float> q_, keys_, values_, part_;
    std::vector<std::byte> memory_;
    std::vector<std::int32_t> block_table_;
    KvLayer layer_;
};

}  // namespace

std::unique_ptr<KernelCase> attention_case(const AttentionCaseShape& shape) {
    return std::make_unique<AttentionCase>(shape);
}

}  // namespace octavo
