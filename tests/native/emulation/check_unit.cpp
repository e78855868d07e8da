// Compares one unit with the portable one over every case, bit for bit; the unit is named by -DOCTAVO_UNIT=..._kernels.
//
// Prints what differs, then `cases`, `differ` and `digest`: a hash of the portable unit's answers, which must be the same
// on every architecture.
#include <cstdio>
#include <cstring>

#include "kernel_units.hpp"
#include "self_test/self_test.hpp"

namespace octavo {
const Kernels& OCTAVO_UNIT();
}

namespace {

// FNV-1a over the bits of the floats. NaNs count as one: processors choose their bits.
class Digest {
public:
    void add(float x) {
        std::uint32_t bits = 0x7fc00000u;
        if (x == x) std::memcpy(&bits, &x, sizeof bits);
        for (int byte = 0; byte < 4; ++byte) hash_ = (hash_ ^ (bits >> 8 * byte & 0xff)) * 0x100000001b3u;
    }
    std::uint64_t hash() const { return hash_; }

private:
    std::uint64_t hash_ = 0xcbf29ce484222325u;
};

}  // namespace

int main() {
    octavo::KernelCases cases = octavo::thorough_cases();
    const octavo::Kernels &unit = octavo::OCTAVO_UNIT(), &portable = octavo::portable_kernels();
    Digest digest;
    int differ = 0;
    for (auto& problem : cases) {
        const auto answer = octavo::answer_of(*problem, portable);
        for (const float x : answer) digest.add(x);
        octavo::KernelCases one;
        one.push_back(std::move(problem));
        const std::string trouble = octavo::self_test(unit, portable, one);
        if (trouble.empty()) continue;
        ++differ;
        std::printf("%s\n", trouble.c_str());
    }
    std::printf("cases %zu\ndiffer %d\ndigest %016llx\n", cases.size(), differ, static_cast<unsigned long long>(digest.hash()));
    return differ != 0;
}
