#include "self_test/self_test.hpp"

#include <csetjmp>
#include <csignal>
#include <cstring>
#include <new>

namespace octavo {
namespace {

// Where this thread goes when an instruction is refused; null outside a guarded call.
thread_local sigjmp_buf* landing = nullptr;

constexpr int kGuardedSignals[] = {SIGILL, SIGSEGV, SIGBUS, SIGFPE};
constexpr int kNumGuarded = 4;

struct sigaction previous_actions[kNumGuarded];

void on_refusal(int signal) {
    if (landing != nullptr) siglongjmp(*landing, signal);
    // Another thread's: what was there before answers when the instruction is tried again.
    for (int i = 0; i < kNumGuarded; ++i) {
        if (kGuardedSignals[i] == signal) sigaction(signal, &previous_actions[i], nullptr);
    }
}

// Our answer to refused instructions, until the end of the scope.
class SignalGuard {
public:
    SignalGuard() {
        struct sigaction action = {};
        action.sa_handler = on_refusal;
        sigemptyset(&action.sa_mask);
        for (int i = 0; i < kNumGuarded; ++i) sigaction(kGuardedSignals[i], &action, &previous_actions[i]);
    }
    ~SignalGuard() {
        for (int i = 0; i < kNumGuarded; ++i) sigaction(kGuardedSignals[i], &previous_actions[i], nullptr);
    }
    SignalGuard(const SignalGuard&) = delete;
    SignalGuard& operator=(const SignalGuard&) = delete;
};

// Runs a case; 0, or the signal that ended it. No frame in between owns anything, so a jump over them leaks nothing.
int guarded_run(KernelCase& problem, const Kernels& kernels, float* answer, std::byte* scratch) {
    sigjmp_buf here;
    const int signal = sigsetjmp(here, 1);
    if (signal == 0) {
        landing = &here;
        problem.run(kernels, answer, scratch);
    }
    landing = nullptr;
    return signal;
}

class Scratch {
public:
    explicit Scratch(const Kernels& kernels)
        : memory_(static_cast<std::byte*>(::operator new(size_for(kernels), kAlignment))) {}
    ~Scratch() { ::operator delete(memory_, kAlignment); }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    std::byte* data() const { return memory_; }

private:
    static constexpr std::align_val_t kAlignment{64};
    static std::size_t size_for(const Kernels& kernels) {
        return kernels.scratch_bytes(kCaseMostInputs, kCaseMostHeadDim, kCaseMostHeadsPerKv, kCaseMostQueries);
    }
    std::byte* memory_;
};

// Bit for bit, but any NaN is a NaN: processors choose its bits.
bool same(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0 || (a != a && b != b); }

std::string first_difference(const std::vector<float>& answer, const std::vector<float>& expected) {
    for (std::size_t i = 0; i < answer.size(); ++i) {
        if (same(answer[i], expected[i])) continue;
        return "value " + std::to_string(i) + " is " + std::to_string(answer[i]) + " instead of " +
               std::to_string(expected[i]);
    }
    return "";
}

// FNV-1a over the bits of floats.
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

std::string refusal(int signal) {
    if (signal == SIGILL) return "the processor or the system refuses an instruction (SIGILL)";
    return "it died of signal " + std::to_string(signal);
}

}  // namespace

std::uint64_t answers_digest(const Kernels& kernels, const KernelCases& cases) {
    const Scratch scratch(kernels);
    Digest digest;
    for (const std::unique_ptr<KernelCase>& problem : cases) {
        std::vector<float> answer(problem->answer_size());
        problem->run(kernels, answer.data(), scratch.data());
        for (const float x : answer) digest.add(x);
    }
    return digest.hash();
}

std::string self_test(const Kernels& unit, const Kernels& portable, const KernelCases& cases) {
    const Scratch scratch(unit), portable_scratch(portable);
    const SignalGuard guard;
    for (const std::unique_ptr<KernelCase>& problem : cases) {
        // Answers start as what no kernel writes, so that an unwritten value is seen.
        std::vector<float> answer(problem->answer_size(), -12345.0f), expected(problem->answer_size(), 54321.0f);
        problem->run(portable, expected.data(), portable_scratch.data());
        const int signal = guarded_run(*problem, unit, answer.data(), scratch.data());
        if (signal != 0) return problem->name() + ": " + refusal(signal);
        const std::string difference = first_difference(answer, expected);
        if (!difference.empty()) return problem->name() + ": " + difference;
    }
    return "";
}

}  // namespace octavo
