#include "sampling/candidates.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

namespace octavo {
namespace {

constexpr int kDigitBits = 8;
constexpr std::uint32_t kBuckets = 1u << kDigitBits;

// Orders like the number itself; -0 and 0 are one key.
std::uint32_t key_of(float logit) {
    const float normal = logit + 0.0f;
    std::uint32_t bits;
    std::memcpy(&bits, &normal, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

struct Keyed {
    std::uint32_t key;
    float measure;  // what is counted: 1, or the weight
};

using Active = std::vector<Keyed>;

struct KeyRange {
    std::uint32_t lowest, highest;
};

KeyRange range_of(const Active& active) {
    KeyRange range{active.front().key, active.front().key};
    for (const Keyed& each : active) {
        range.lowest = std::min(range.lowest, each.key);
        range.highest = std::max(range.highest, each.key);
    }
    return range;
}

// How far to shift so that the range falls into at most kBuckets buckets.
int shift_of(const KeyRange& range) {
    int shift = 0;
    while ((range.highest - range.lowest) >> shift >= kBuckets) ++shift;
    return shift;
}

// Leaves in `active` those with the highest key at which all at or above it measure `wanted` (the lowest key if they
// never do), and returns what the keys above it measure. Radix selection: buckets of keys, then of the keys in the
// bucket where the sum is reached, at most four times.
double narrow_to_cut(Active& active, double wanted) {
    double above = 0.0;
    for (KeyRange range = range_of(active); range.lowest != range.highest; range = range_of(active)) {
        const int shift = shift_of(range);
        const auto bucket_of = [&](const Keyed& each) { return (each.key - range.lowest) >> shift; };
        std::array<double, kBuckets> measures{};
        for (const Keyed& each : active) measures[bucket_of(each)] += static_cast<double>(each.measure);
        std::uint32_t chosen = bucket_of({range.highest, 0.0f});
        while (chosen > 0 && above + measures[chosen] < wanted) above += measures[chosen--];
        const auto is_outside = [&](const Keyed& each) { return bucket_of(each) != chosen; };
        active.erase(std::remove_if(active.begin(), active.end(), is_outside), active.end());
    }
    return above;
}

// How many of the tied ones, each of `measure`, it takes to get from `above` to `wanted`: at least one.
std::int64_t num_tied_wanted(double above, double measure, double wanted, std::int64_t num_tied) {
    std::int64_t count = 1;
    while (count < num_tied && above + measure * static_cast<double>(count) < wanted) ++count;
    return count;
}

template <typename Measure>
void keep_until(double wanted, Candidates& kept, Measure measure) {
    if (kept.empty()) return;
    Active active;
    active.reserve(kept.size());
    for (const Candidate& each : kept) active.push_back({key_of(each.logit), measure(each)});
    const double above = narrow_to_cut(active, wanted);
    const Keyed cut = active.front();
    std::int64_t num_left =
        num_tied_wanted(above, static_cast<double>(cut.measure), wanted, static_cast<std::int64_t>(active.size()));
    const auto is_outside = [&](const Candidate& each) {
        const std::uint32_t key = key_of(each.logit);
        return key < cut.key || (key == cut.key && num_left-- <= 0);
    };
    kept.erase(std::remove_if(kept.begin(), kept.end(), is_outside), kept.end());
}

// Of the `count` highest logits none is below this: `count` blocks have one at least as high.
float bound_of_highest(const RowScan& scan, std::int64_t count) {
    if (count > scan.num_blocks()) return -std::numeric_limits<float>::infinity();
    std::vector<float> maxima(scan.maxima, scan.maxima + scan.num_blocks());
    std::nth_element(maxima.begin(), maxima.begin() + (count - 1), maxima.end(), std::greater<float>());
    return maxima[static_cast<std::size_t>(count - 1)];
}

// All tokens of blocks that hold a logit of at least `lowest_logit`, if `measure(token)` is at least `lowest`. Written
// without a branch on the token: which ones stay cannot be foretold.
template <typename Measure>
void take_from(const RowScan& scan, float lowest_logit, double lowest, Candidates& kept, Measure measure) {
    kept.clear();
    std::size_t count = 0;
    for (std::int64_t block = 0; block < scan.num_blocks(); ++block) {
        if (!(scan.maxima[block] >= lowest_logit)) continue;
        const std::int64_t end = std::min((block + 1) * kScanBlock, scan.num_tokens);
        if (kept.size() < count + kScanBlock) kept.resize(2 * count + kScanBlock);
        for (std::int64_t token = block * kScanBlock; token < end; ++token) {
            const float value = measure(token);
            kept[count] = {static_cast<std::int32_t>(token), scan.logits[token], value};
            count += static_cast<double>(value) >= lowest;
        }
    }
    kept.resize(count);
}

}  // namespace

void take_highest(const RowScan& scan, std::int64_t count, Candidates& kept) {
    const float lowest = bound_of_highest(scan, count);
    take_from(scan, lowest, static_cast<double>(lowest), kept, [&](std::int64_t token) { return scan.logits[token]; });
    keep_until(static_cast<double>(count), kept, [](const Candidate&) { return 1.0f; });
}

void take_weights_from(const RowScan& scan, const float* weights, float temperature, double lowest, Candidates& kept) {
    // A block is passed over only if its highest logit is clearly too low: a thousandth covers exp's rounding.
    const double bound = scan.highest + static_cast<double>(temperature) * (std::log(lowest) - 1e-3);
    const float lowest_logit =
        bound > -std::numeric_limits<float>::max() ? std::nextafter(static_cast<float>(bound), -HUGE_VALF) : -HUGE_VALF;
    take_from(scan, lowest_logit, lowest, kept, [&](std::int64_t token) { return weights[token]; });
}

void keep_weights_from(double lowest, Candidates& kept) {
    const auto is_light = [&](const Candidate& each) { return static_cast<double>(each.weight) < lowest; };
    kept.erase(std::remove_if(kept.begin(), kept.end(), is_light), kept.end());
}

void keep_mass(double wanted, Candidates& kept) {
    keep_until(wanted, kept, [](const Candidate& each) { return each.weight; });
}

double mass_of(const Candidates& kept) {
    double mass = 0.0;
    for (const Candidate& each : kept) mass += static_cast<double>(each.weight);
    return mass;
}

}  // namespace octavo
