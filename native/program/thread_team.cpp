#include "program/thread_team.hpp"

#include <chrono>
#include <stdexcept>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace octavo {
namespace {

using Clock = std::chrono::steady_clock;

void relax() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

// Spins for a while: the other side is nearly done.
class Patience {
public:
    // False once it is used up.
    bool spin() {
        relax();
        return ++num_spins_ < kSpins;
    }

private:
    static constexpr int kSpins = 1000;  // some 15 to 50 us
    int num_spins_ = 0;
};

// Between jobs a worker stays awake this long: the next step usually follows within it.
constexpr std::chrono::microseconds kAwake{300};

}  // namespace

ThreadTeam::ThreadTeam(int num_threads) : phases_(std::make_unique<Phase[]>(kMostPhases)) {
    if (num_threads < 1) throw std::invalid_argument("a team has at least one thread");
    for (int thread = 1; thread < num_threads; ++thread) workers_.emplace_back([this, thread] { work(thread); });
}

ThreadTeam::~ThreadTeam() {
    closing_.store(true);
    bell_.fetch_add(1);
    bell_.notify_all();
    for (std::thread& worker : workers_) worker.join();
}

void ThreadTeam::run(Job& job) {
    const std::lock_guard<std::mutex> turn(one_job_);
    num_phases_ = job.num_phases();
    if (num_phases_ > kMostPhases) throw std::length_error("a job has too many phases");
    for (std::int64_t phase = 0; phase < num_phases_; ++phase) {
        phases_[phase].num_tasks.store(static_cast<std::int32_t>(job.num_tasks(phase)), std::memory_order_relaxed);
        phases_[phase].num_finished.store(0, std::memory_order_relaxed);
    }
    job_.store(&job, std::memory_order_relaxed);
    const std::uint64_t number = Ticket::next_job(ticket_.load(std::memory_order_relaxed));
    ticket_.store(Ticket::make(number, first_open_phase(0)), std::memory_order_release);
    bell_.fetch_add(1, std::memory_order_release);
    if (num_asleep_.load() > 0) bell_.notify_all();
    take_part(number, 0);
}

std::int64_t ThreadTeam::first_open_phase(std::int64_t phase) const {
    while (phase < num_phases_ && phases_[phase].num_tasks.load(std::memory_order_relaxed) == 0) ++phase;
    return phase < num_phases_ ? phase : Ticket::kOver;
}

void ThreadTeam::take_part(std::uint64_t job_number, int thread) {
    Patience patience;
    for (;;) {
        std::uint64_t word = ticket_.load(std::memory_order_acquire);
        const std::int64_t phase = Ticket::phase(word), task = Ticket::task(word);
        if (Ticket::job(word) != job_number || phase == Ticket::kOver) return;
        if (task >= phases_[phase].num_tasks.load(std::memory_order_relaxed)) {
            if (!patience.spin()) {
                sleep_until_phase_opens(word);
                patience = Patience();
            }
            continue;
        }
        if (!ticket_.compare_exchange_weak(word, word + 1, std::memory_order_acq_rel)) continue;
        job_.load(std::memory_order_relaxed)->run_task(phase, task, thread);
        finish_task(job_number, phase);
        patience = Patience();
    }
}

void ThreadTeam::finish_task(std::uint64_t job_number, std::int64_t phase) {
    Phase& counts = phases_[phase];
    const std::int32_t num_tasks = counts.num_tasks.load(std::memory_order_relaxed);
    if (counts.num_finished.fetch_add(1, std::memory_order_acq_rel) + 1 == num_tasks) {
        // Sequentially consistent, as in sleep_until_phase_opens: either this sees who waits, or who waits sees this.
        ticket_.store(Ticket::make(job_number, first_open_phase(phase + 1)));
        if (num_waiting_.load() > 0) {
            num_wakes_.fetch_add(1);
            num_wakes_.notify_all();
        }
    }
}

void ThreadTeam::sleep_until_phase_opens(std::uint64_t word) {
    num_waiting_.fetch_add(1);
    const std::uint32_t heard = num_wakes_.load();
    if (ticket_.load() == word) num_wakes_.wait(heard);
    num_waiting_.fetch_sub(1);
}

void ThreadTeam::work(int thread) {
    std::uint64_t last_job = 0;
    while (!closing_.load(std::memory_order_acquire)) {
        const std::uint64_t number = Ticket::job(ticket_.load(std::memory_order_acquire));
        if (number == last_job) {
            sleep_until_new_job(last_job);
            continue;
        }
        take_part(number, thread);
        last_job = number;
    }
}

void ThreadTeam::sleep_until_new_job(std::uint64_t last_job) {
    const auto is_news = [&] {
        return closing_.load(std::memory_order_acquire) ||
               Ticket::job(ticket_.load(std::memory_order_acquire)) != last_job;
    };
    const Clock::time_point awake_until = Clock::now() + kAwake;
    while (!is_news()) {
        if (Clock::now() < awake_until) {
            Patience patience;
            while (patience.spin() && !is_news()) {
            }
            continue;
        }
        // Announce the sleep first: whoever rings after this sees the count, whoever rang before changed the bell.
        num_asleep_.fetch_add(1);
        const std::uint32_t heard = bell_.load();
        if (!is_news()) bell_.wait(heard);
        num_asleep_.fetch_sub(1);
        return;
    }
}

}  // namespace octavo
