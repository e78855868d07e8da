// Cases of linear layers.
#include <algorithm>
#include <cstring>

#include "kernels/linear_layout.hpp"
#include "self_test/case_numbers.hpp"
#include "self_test/cases.hpp"

namespace octavo {
namespace {

// Codes must start on a cache line, as they do in a PackedMatrix.
class AlignedBytes {
public:
    explicit AlignedBytes(const std::vector<std::uint8_t>& bytes) : memory_(bytes.size() + 64) {
        const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
        start_ = memory_.data() + (64 - address % 64) % 64;
        std::memcpy(start_, bytes.data(), bytes.size());
    }
    std::uint8_t* data() const { return start_; }

private:
    std::vector<std::uint8_t> memory_;
    std::uint8_t* start_;
};

std::uint16_t upper_half(float x) {
    std::uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return static_cast<std::uint16_t>(bits >> 16);
}

// A normal binary16 number between 2^-9 and 2^-4.
std::uint16_t half_scale(CaseNumbers& numbers) {
    return static_cast<std::uint16_t>((6 + numbers.below(5)) << 10 | numbers.below(1024));
}

std::vector<std::uint8_t> random_scales(CaseNumbers& numbers, ScaleFormat format, std::int64_t count) {
    std::vector<std::uint8_t> out(static_cast<std::size_t>(count) * (format == ScaleFormat::f32 ? 4 : 2));
    for (std::int64_t i = 0; i < count; ++i) {
        const float scale = numbers.scale();
        const std::uint16_t half = format == ScaleFormat::f16 ? half_scale(numbers) : upper_half(scale);
        if (format == ScaleFormat::f32) std::memcpy(&out[4 * i], &scale, 4);
        if (format != ScaleFormat::f32) std::memcpy(&out[2 * i], &half, 2);
    }
    return out;
}

std::string packed_name(const PackedCaseShape& s) {
    const char* formats[] = {"f16", "bf16", "f32"};
    return "packed_linear bits=" + (s.bits == kFp4 ? "fp4" : std::to_string(s.bits)) +
           " zeros=" + std::to_string(s.has_zeros) + " scales=" + formats[static_cast<int>(s.scale_format)] +
           " group=" + std::to_string(s.group) + "x" + std::to_string(s.groups_per_scale) +
           " outputs=" + std::to_string(s.outputs) + " inputs=" + std::to_string(s.inputs) +
           " rows=" + std::to_string(s.rows);
}

class PackedCase : public KernelCase {
public:
    explicit PackedCase(const PackedCaseShape& s)
        : shape_(s),
          tiles_(round_up(s.outputs, kTileOutputs) / kTileOutputs),
          groups_((s.inputs + s.group - 1) / s.group),
          scale_groups_((groups_ + s.groups_per_scale - 1) / s.groups_per_scale),
          padded_(padded_inputs(s.inputs)),
          numbers_(static_cast<std::uint64_t>(s.inputs + 1000 * s.rows + s.bits)),
          codes_(numbers_.bytes(tiles_ * tile_bytes())),
          scales_(random_scales(numbers_, s.scale_format, tiles_ * scale_groups_ * kTileOutputs)),
          zeros_(numbers_.bytes(tiles_ * scale_groups_ * kTileOutputs, 1 << s.bits)) {
        fill_activations();
    }
    std::string name() const override { return packed_name(shape_); }
    std::size_t answer_size() const override {
        return static_cast<std::size_t>(shape_.rows * shape_.outputs + shape_.inputs);
    }

    void run(const Kernels& kernels, float* answer, std::byte* scratch) override {
        const PackedWeight w = weight();
        const QuantizedRows x = {x_codes_.data(), x_scales_.data(), x_sums_.data(), padded_,
                                 groups_,         shape_.group,     shape_.inputs};
        // Two calls, as two threads would share the tiles.
        const std::int64_t cut = tiles_ / 2;
        const Rows y = {answer, shape_.outputs};
        if (cut > 0) kernels.packed_linear(w, x, shape_.rows, 0, cut, y, scratch);
        kernels.packed_linear(w, x, shape_.rows, cut, tiles_, y.from(0, cut * kTileOutputs), scratch);
        kernels.packed_row(w, shape_.outputs - 1, 1.5f, answer + shape_.rows * shape_.outputs);
    }

private:
    std::int64_t tile_bytes() const { return padded_ / kOctetInputs * octet_bytes(shape_.bits); }
    PackedWeight weight() const {
        PackedWeight w;
        w.bits = shape_.bits;
        w.outputs = shape_.outputs, w.inputs = shape_.inputs, w.tiles = tiles_;
        w.group = shape_.group, w.groups = groups_;
        w.groups_per_scale = shape_.groups_per_scale, w.scale_groups = scale_groups_;
        w.scale_format = shape_.scale_format;
        w.codes = codes_.data(), w.tile_bytes = tile_bytes();
        w.scales = scales_.data();
        w.output_scale = shape_.output_scale;
        w.zeros = shape_.has_zeros ? zeros_.data() : nullptr;
        return w;
    }
    void fill_activations() {
        x_codes_.resize(static_cast<std::size_t>(shape_.rows * padded_));
        for (std::int64_t row = 0; row < shape_.rows; ++row) {
            for (std::int64_t group = 0; group < groups_; ++group) {
                const std::int64_t first = group * shape_.group, end = std::min(first + shape_.group, shape_.inputs);
                std::int32_t sum = 0;
                for (std::int64_t i = first; i < end; ++i) {
                    // Extremes are common: what saturates must be seen.
                    const int code = numbers_.below(3) == 0 ? 127 : numbers_.below(255) - 127;
                    x_codes_[static_cast<std::size_t>(row * padded_ + i)] = static_cast<std::int8_t>(code);
                    sum += code;
                }
                x_sums_.push_back(sum);
                x_scales_.push_back(numbers_.scale());
            }
        }
    }
    PackedCaseShape shape_;
    std::int64_t tiles_, groups_, scale_groups_, padded_;
    CaseNumbers numbers_;
    AlignedBytes codes_;
    std::vector<std::uint8_t> scales_, zeros_;
    std::vector<std::int8_t> x_codes_;
    std::vector<float> x_scales_;
    std::vector<std::int32_t> x_sums_;
};

// Any code but NaN and infinity.
std::uint8_t fp8_byte(CaseNumbers& numbers, DenseFormat format) {
    const int largest = format == DenseFormat::e4m3 ? 0x7e : 0x7b;
    return static_cast<std::uint8_t>(numbers.below(largest + 1) | (numbers.below(2) << 7));
}

std::vector<std::uint8_t> random_dense(CaseNumbers& numbers, DenseFormat format, std::int64_t count) {
    std::vector<std::uint8_t> out(static_cast<std::size_t>(count) * (format == DenseFormat::f32 ? 4 : 2));
    for (std::int64_t i = 0; is_fp8(format) && i < count; ++i) out[i] = fp8_byte(numbers, format);
    for (std::int64_t i = 0; !is_fp8(format) && i < count; ++i) {
        const float value = numbers.value();
        const std::uint16_t half = format == DenseFormat::bf16 ? upper_half(value) : half_scale(numbers);
        if (format == DenseFormat::f32) std::memcpy(&out[4 * i], &value, 4);
        if (format != DenseFormat::f32) std::memcpy(&out[2 * i], &half, 2);
    }
    return out;
}

class DenseCase : public KernelCase {
public:
    explicit DenseCase(const DenseCaseShape& s)
        : shape_(s),
          tiles_(round_up(s.outputs, kTileOutputs) / kTileOutputs),
          numbers_(static_cast<std::uint64_t>(s.inputs + s.rows)),
          values_(random_dense(numbers_, s.format, tiles_ * s.inputs * kTileOutputs)),
          x_(numbers_.values(s.rows * s.inputs)),
          groups_((s.inputs + s.group - 1) / s.group) {
        for (std::int64_t i = 0; i < tiles_ * groups_ * kTileOutputs; ++i) scales_.push_back(numbers_.scale());
    }
    std::string name() const override {
        const char* formats[] = {"f32", "bf16", "f16", "e4m3", "e5m2"};
        return std::string("dense_linear ") + formats[static_cast<int>(shape_.format)] +
               " outputs=" + std::to_string(shape_.outputs) + " inputs=" + std::to_string(shape_.inputs) +
               " rows=" + std::to_string(shape_.rows) +
               (is_fp8(shape_.format) ? " group=" + std::to_string(shape_.group) : "");
    }
    std::size_t answer_size() const override {
        return static_cast<std::size_t>(shape_.rows * shape_.outputs + shape_.inputs);
    }
    void run(const Kernels& kernels, float* answer, std::byte* scratch) override {
        const DenseWeight weight = {shape_.outputs, shape_.inputs,  tiles_,       shape_.format,
                                    values_.data(), scales_.data(), shape_.group, groups_};
        const ConstRows x = {x_.data(), shape_.inputs};
        const Rows y = {answer, shape_.outputs};
        const std::int64_t cut = tiles_ / 2;
        if (cut > 0) kernels.dense_linear(weight, x, shape_.rows, 0, cut, y, scratch);
        kernels.dense_linear(weight, x, shape_.rows, cut, tiles_, y.from(0, cut * kTileOutputs), scratch);
        kernels.dense_row(weight, shape_.outputs - 1, 1.5f, answer + shape_.rows * shape_.outputs);
    }

private:
    DenseCaseShape shape_;
    std::int64_t tiles_;
    CaseNumbers numbers_;
    AlignedBytes values_;
    std::vector<float> x_;
    std::int64_t groups_;
    std::vector<float> scales_;
};

}  // namespace

std::unique_ptr<KernelCase> packed_case(const PackedCaseShape& shape) { return std::make_unique<PackedCase>(shape); }
std::unique_ptr<KernelCase> dense_case(const DenseCaseShape& shape) { return std::make_unique<DenseCase>(shape); }

}  // namespace octavo
