// Cases of the kernels that work on one row of floats.
#include <algorithm>
#include <cstring>
#include <limits>

#include "self_test/case_numbers.hpp"
#include "self_test/cases.hpp"

namespace octavo {
namespace {

constexpr std::int64_t kCaseGroup = 64;

// Each kernel writes its own row of the answer.
class RowCase : public KernelCase {
public:
    explicit RowCase(std::int64_t features)
        : features_(features),
          padded_(round_up(features, kFeatureMultiple)),
          groups_((features + kCaseGroup - 1) / kCaseGroup),
          numbers_(static_cast<std::uint64_t>(features)),
          x_(numbers_.values(features)),
          y_(numbers_.values(features)),
          angles_(numbers_.values(2 * features)),
          odd_(x_),
          codes_(static_cast<std::size_t>(padded_)),
          scales_(static_cast<std::size_t>(groups_)),
          sums_(static_cast<std::size_t>(groups_)) {
        make_odd();
    }
    std::string name() const override { return "rows features=" + std::to_string(features_); }
    std::size_t answer_size() const override {
        return static_cast<std::size_t>(9 * features_ + 4 * (padded_ + 2 * groups_));
    }
    void run(const Kernels& kernels, float* answer, std::byte*) override {
        kernels.rms_norm(x_.data(), y_.data(), 1e-5f, features_, answer);
        kernels.add(x_.data(), features_, copied(answer += features_));
        kernels.gated(copied(answer += features_), x_.data(), features_, ActivationKind::silu);
        kernels.gated(copied(answer += features_), x_.data(), features_, ActivationKind::gelu_tanh);
        kernels.rope(copied(answer += features_), angles_.data(), angles_.data() + features_, features_ / 2);
        kernels.softcap(copied(answer += features_), features_, 1.5f);
        kernels.round_e4m3(copied(answer += features_), features_, 0.0f);
        kernels.round_e4m3(copied(answer += features_), features_, 0.003f);
        kernels.round_e4m3(std::copy(odd_.begin(), odd_.end(), answer += features_) - features_, features_, 0.0f);
        answer += features_;
        answer = quantize(kernels, x_, ScaleSource::group, answer);
        answer = quantize(kernels, odd_, ScaleSource::group, answer);
        answer = quantize(kernels, x_, ScaleSource::row, answer);
        quantize(kernels, x_, ScaleSource::fixed, answer);
    }

private:
    float* copied(float* to) const {
        std::copy(y_.begin(), y_.end(), to);
        return to;
    }
    // A group with infinity, then NaN, zeros, and numbers whose scale would be subnormal.
    void make_odd() {
        const auto fill = [&](std::int64_t group, float with, std::int64_t stride) {
            for (std::int64_t i = group * kCaseGroup; i < std::min((group + 1) * kCaseGroup, features_); i += stride) {
                odd_[static_cast<std::size_t>(i)] = with;
            }
        };
        fill(0, std::numeric_limits<float>::infinity(), 7);
        fill(1, std::numeric_limits<float>::quiet_NaN(), 9);
        fill(2, 0.0f, 1);
        fill(3, 1e-37f, 1);
        fill(4, -0.0f, 1);
    }
    // Returns where the next answer goes.
    float* quantize(const Kernels& kernels, const std::vector<float>& x, ScaleSource source, float* answer) {
        const QuantizedRows rows = {codes_.data(), scales_.data(), sums_.data(),
                                    padded_,       groups_,        kCaseGroup,
                                    features_,     source,         source == ScaleSource::fixed ? 0.0149f : 0};
        // In two pieces, as two threads would, where the scale allows it.
        const std::int64_t cut = source == ScaleSource::row ? 0 : groups_ / 2 * kCaseGroup;
        if (cut > 0) kernels.quantize_row(x.data(), cut, rows, 0, 0);
        kernels.quantize_row(x.data() + cut, features_ - cut, rows, 0, cut);
        for (const std::int8_t code : codes_) *answer++ = code;
        for (const float scale : scales_) *answer++ = scale;
        for (const std::int32_t sum : sums_) *answer++ = static_cast<float>(sum);
        return answer;
    }

    std::int64_t features_, padded_, groups_;
    CaseNumbers numbers_;
    std::vector<float> x_, y_, angles_, odd_;
    std::vector<std::int8_t> codes_;
    std::vector<float> scales_;
    std::vector<std::int32_t> sums_;
};

}  // namespace

std::unique_ptr<KernelCase> row_case(std::int64_t features) { return std::make_unique<RowCase>(features); }

}  // namespace octavo
