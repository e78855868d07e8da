#include "cpu_features.hpp"

#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace octavo {
namespace {

#if defined(__x86_64__)
constexpr bool has_bit(std::uint32_t word, int bit) { return (word >> bit) & 1u; }

constexpr bool has_all(std::uint64_t word, std::uint64_t bits) { return (word & bits) == bits; }

// XCR0: the register states that the operating system saves on a context switch.
std::uint64_t saved_register_states() {
    std::uint32_t low = 0, high = 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (std::uint64_t{high} << 32) | low;
}

// For all threads of the process, those to come included. A kernel before 5.16 knows neither the question nor AMX.
bool tiles_are_permitted() {
#if defined(__linux__)
    constexpr long request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
    return false;
#endif
}

CpuFeatures detect() {
    // Bits: Intel SDM volume 2A, CPUID; volume 1, chapter 13 (XCR0).
    constexpr std::uint64_t avx_states = 0x6, avx512_states = 0xe6, amx_states = 0x60000;
    CpuFeatures found;
    std::uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !has_bit(ecx, 27)) return found;  // 27: OSXSAVE
    const std::uint64_t states = saved_register_states();
    if (!has_all(states, avx_states)) return found;
    found.avx = has_bit(ecx, 28);
    found.fma = has_bit(ecx, 12);
    found.f16c = has_bit(ecx, 29);
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return found;
    const std::uint32_t last_subleaf = eax;
    found.avx2 = has_bit(ebx, 5);
    const bool avx512 = has_all(states, avx512_states);
    found.avx512f = avx512 && has_bit(ebx, 16);
    found.avx512bw = avx512 && has_bit(ebx, 30);
    found.avx512vl = avx512 && has_bit(ebx, 31);
    found.avx512_vnni = avx512 && has_bit(ecx, 11);
    const bool amx = has_all(states, amx_states) && has_bit(edx, 24) && tiles_are_permitted();
    found.amx_bf16 = amx && has_bit(edx, 22);
    found.amx_tile = amx && has_bit(edx, 24);
    found.amx_int8 = amx && has_bit(edx, 25);
    if (last_subleaf >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx)) {
        found.avx512_bf16 = avx512 && has_bit(eax, 5);
    }
    return found;
}
#else
CpuFeatures detect() {
    CpuFeatures found;
#if defined(__aarch64__)
    found.neon = true;  // part of the base architecture
#if defined(__linux__)
    constexpr unsigned long dotprod = 1ul << 20;  // HWCAP_ASIMDDP
    found.neon_dotprod = getauxval(AT_HWCAP) & dotprod;
#elif defined(__ARM_FEATURE_DOTPROD)
    found.neon_dotprod = true;  // built for a processor that has it, Apple's for instance
#endif
#endif
    return found;
}
#endif

}  // namespace

const CpuFeatures& cpu_features() {
    static const CpuFeatures features = detect();
    return features;
}

std::vector<std::string> cpu_feature_names() {
    const CpuFeatures& f = cpu_features();
    const struct {
        const char* name;
        bool there;
    } table[] = {
        {"avx", f.avx},
        {"fma", f.fma},
        {"f16c", f.f16c},
        {"avx2", f.avx2},
        {"avx512f", f.avx512f},
        {"avx512bw", f.avx512bw},
        {"avx512vl", f.avx512vl},
        {"avx512_vnni", f.avx512_vnni},
        {"avx512_bf16", f.avx512_bf16},
        {"amx_tile", f.amx_tile},
        {"amx_int8", f.amx_int8},
        {"amx_bf16", f.amx_bf16},
        {"neon", f.neon},
        {"neon_dotprod", f.neon_dotprod},
    };
    std::vector<std::string> names;
    for (const auto& row : table) {
        if (row.there) names.emplace_back(row.name);
    }
    return names;
}

}  // namespace octavo
