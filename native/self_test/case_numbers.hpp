// Numbers for test cases: a generator that every compiler and processor agrees on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace octavo {

class CaseNumbers {
public:
    explicit CaseNumbers(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}

    // xorshift64* (Vigna 2016)
    std::uint32_t bits() {
        state_ ^= state_ >> 12;
        state_ ^= state_ << 25;
        state_ ^= state_ >> 27;
        return static_cast<std::uint32_t>((state_ * 0x2545f4914f6cdd1du) >> 32);
    }
    int below(int limit) { return static_cast<int>(bits() % static_cast<std::uint32_t>(limit)); }
    // In [-2, 2), of many magnitudes.
    float value() {
        const float magnitude = static_cast<float>(1 + below(1 << 20)) / static_cast<float>(1 << 19);
        const float small = below(4) == 0 ? 0.001f : 1.0f;
        return (below(2) == 0 ? magnitude : -magnitude) * small;
    }
    // In (0, 1 / 64].
    float scale() { return static_cast<float>(1 + below(1 << 16)) / static_cast<float>(1 << 22); }

    std::vector<float> values(std::int64_t count) {
        std::vector<float> out(static_cast<std::size_t>(count));
        for (float& x : out) x = value();
        return out;
    }
    std::vector<std::uint8_t> bytes(std::int64_t count, int limit = 256) {
        std::vector<std::uint8_t> out(static_cast<std::size_t>(count));
        for (std::uint8_t& byte : out) byte = static_cast<std::uint8_t>(below(limit));
        return out;
    }

private:
    std::uint64_t state_;
};

}  // namespace octavo
