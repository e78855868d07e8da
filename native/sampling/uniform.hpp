// Counter-based randomness: one number for each (seed, sequence index, position), whatever ran before, so that a
// preempted, batched or restarted sequence draws the same numbers.
#pragma once

#include <cstdint>

namespace octavo {

// SplitMix64's mixing function (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators").
inline std::uint64_t mix(std::uint64_t value) {
    value += 0x9E3779B97F4A7C15u;
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
    return value ^ (value >> 31);
}

// In [0, 1) with 53 random bits, keyed by all three.
inline double uniform(std::uint64_t seed, std::uint64_t sequence_index, std::uint64_t position) {
    constexpr std::uint64_t golden_gamma = 0x9E3779B97F4A7C15u;
    std::uint64_t state = mix(seed);
    state = mix(state ^ (sequence_index * golden_gamma));
    state = mix(state ^ (position * golden_gamma));
    return static_cast<double>(state >> 11) * 0x1p-53;
}

}  // namespace octavo
