#include "program/measure.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "program/aligned_memory.hpp"

namespace octavo {
namespace {

constexpr int kPasses = 8;

double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

class ReadJob final : public Job {
public:
    explicit ReadJob(std::int64_t num_bytes) : memory_(static_cast<std::size_t>(num_bytes)) {}
    std::int64_t num_phases() const override { return 1; }
    std::int64_t num_tasks(std::int64_t) const override {
        return static_cast<std::int64_t>(memory_.num_bytes()) / kTaskBytes;
    }
    void run_task(std::int64_t, std::int64_t task, int) override {
        const auto* words = reinterpret_cast<const std::uint64_t*>(memory_.data() + task * kTaskBytes);
        std::uint64_t sums[8] = {};
        for (std::int64_t i = 0; i < kTaskBytes / 8; i += 8) {
            for (int lane = 0; lane < 8; ++lane) sums[lane] ^= words[i + lane];
        }
        std::uint64_t all = 0;
        for (const std::uint64_t sum : sums) all ^= sum;
        sink_.fetch_xor(all, std::memory_order_relaxed);  // so that the reads are not optimised away
    }

private:
    static constexpr std::int64_t kTaskBytes = 1 << 20;
    AlignedMemory memory_;
    std::atomic<std::uint64_t> sink_{0};
};

// 64 rows times 128 outputs of 512 inputs: 32 KB of weights and 32 KB of activations for each thread.
class DotJob final : public Job {
public:
    DotJob(const Kernels& kernels, int num_threads)
        : kernels_(kernels),
          num_threads_(num_threads),
          codes_(kOutputs * kInputs / 2),
          scales_(kOutputs * 8, 0x3c00),
          scratch_(static_cast<std::size_t>(num_threads) * kernels.scratch_bytes(kInputs, 64, 1, 1) + 4096),
          x_(kRows * kInputs, 3),
          x_scales_(kRows * 8, 1.0f),
          x_sums_(kRows * 8, 192),
          y_(static_cast<std::size_t>(num_threads) * kRows * kOutputs) {
        weight_.bits = 4;
        weight_.outputs = kOutputs;
        weight_.inputs = kInputs;
        weight_.tiles = kOutputs / 16;
        weight_.group = 64;
        weight_.groups = weight_.scale_groups = 8;
        std::memset(codes_.data(), 0x35, codes_.num_bytes());
        weight_.codes = reinterpret_cast<const std::uint8_t*>(codes_.data());
        weight_.tile_bytes = 16 * kInputs / 2;
        weight_.scales = scales_.data();
    }
    std::int64_t num_phases() const override { return 1; }
    std::int64_t num_tasks(std::int64_t) const override { return kTasks * num_threads_; }
    void run_task(std::int64_t, std::int64_t, int thread) override {
        QuantizedRows x{x_.data(), x_scales_.data(), x_sums_.data(), kInputs, 8, 64, kInputs};
        const auto scratch_bytes = kernels_.scratch_bytes(kInputs, 64, 1, 1);
        float* y = y_.data() + static_cast<std::int64_t>(thread) * kRows * kOutputs;
        kernels_.packed_linear(
            weight_, x, kRows, 0, weight_.tiles, {y, kOutputs},
            reinterpret_cast<std::byte*>(scratch_.data()) + static_cast<std::size_t>(thread) * scratch_bytes);
    }
    double operations() const { return 2.0 * kRows * kOutputs * kInputs * kTasks * num_threads_; }

private:
    static constexpr std::int64_t kRows = 64, kOutputs = 128, kInputs = 512, kTasks = 32;
    const Kernels& kernels_;
    int num_threads_;
    AlignedMemory codes_;
    std::vector<std::uint16_t> scales_;
    AlignedMemory scratch_;
    std::vector<std::int8_t> x_;
    std::vector<float> x_scales_;
    std::vector<std::int32_t> x_sums_;
    std::vector<float> y_;
    PackedWeight weight_;
};

template <typename Work>
double best_rate(double amount, const Work& work) {
    double best = 0;
    for (int pass = 0; pass < kPasses; ++pass) {
        const auto start = std::chrono::steady_clock::now();
        work();
        best = std::max(best, amount / seconds_since(start));
    }
    return best;
}

}  // namespace

double measure_bandwidth(ThreadTeam& team, std::int64_t num_bytes) {
    ReadJob job(num_bytes);
    return best_rate(static_cast<double>(job.num_tasks(0)) * (1 << 20), [&] { team.run(job); });
}

double measure_dot_rate(ThreadTeam& team, const Kernels& kernels) {
    DotJob job(kernels, team.num_threads());
    return best_rate(job.operations(), [&] { team.run(job); });
}

}  // namespace octavo
