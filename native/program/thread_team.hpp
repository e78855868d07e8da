// One persistent team of threads that runs jobs made of phases.
//
// A phase has a number of tasks that any thread may claim; the next phase opens when the last task of this one is
// finished, by whoever finishes it. So nobody waits for a thread that holds no task: beside a busy neighbour, a thread
// that the system has set aside simply takes no part until it is back. Which thread runs a task never matters for the
// result; that is the tasks' own promise.
//
// Waiting threads spin for a moment, then sleep: a sleeper keeps its share of the core for when there is work, where one
// that yields beside a busy neighbour has spent it by then.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace octavo {

// What a team runs. `run_task` must not throw.
class Job {
public:
    virtual ~Job() = default;
    virtual std::int64_t num_phases() const = 0;
    virtual std::int64_t num_tasks(std::int64_t phase) const = 0;
    virtual void run_task(std::int64_t phase, std::int64_t task, int thread) = 0;
};

class ThreadTeam {
public:
    // The caller of `run` is thread 0, so `num_threads` - 1 threads are started. Throws std::invalid_argument below 1.
    explicit ThreadTeam(int num_threads);
    ~ThreadTeam();
    ThreadTeam(const ThreadTeam&) = delete;
    ThreadTeam& operator=(const ThreadTeam&) = delete;

    int num_threads() const { return static_cast<int>(workers_.size()) + 1; }
    // Returns when every task of every phase is done. One job at a time; others wait their turn.
    // Throws std::length_error for a job of more than kMostPhases phases.
    void run(Job& job);

    static constexpr std::int64_t kMostPhases = 1 << 14;

private:
    // Job number (it wraps), phase and next task in one word: a claim is one compare-and-swap, and fails if anything moved
    // on. A job that is over has the phase kOver, which no job ever opens: nothing of it can be claimed, whatever the
    // counts of the next job are.
    struct Ticket {
        static constexpr int kTaskBits = 28, kPhaseBits = 16, kJobBits = 64 - kTaskBits - kPhaseBits;
        static constexpr std::int64_t kOver = (1 << kPhaseBits) - 1;
        static constexpr std::uint64_t make(std::uint64_t job, std::uint64_t phase) {
            return (job << (kTaskBits + kPhaseBits)) | (phase << kTaskBits);
        }
        static constexpr std::uint64_t job(std::uint64_t word) { return word >> (kTaskBits + kPhaseBits); }
        static constexpr std::uint64_t next_job(std::uint64_t word) {
            return (job(word) + 1) & ((std::uint64_t{1} << kJobBits) - 1);
        }
        static constexpr std::int64_t phase(std::uint64_t word) {
            return static_cast<std::int64_t>((word >> kTaskBits) & ((1u << kPhaseBits) - 1));
        }
        static constexpr std::int64_t task(std::uint64_t word) {
            return static_cast<std::int64_t>(word & ((1u << kTaskBits) - 1));
        }
    };
    // Owned by the team and never freed before its threads: a late thread may look at the counts of a job that is over;
    // its claim fails then.
    struct Phase {
        std::atomic<std::int32_t> num_tasks{0};
        std::atomic<std::int32_t> num_finished{0};
    };

    void work(int thread);
    void sleep_until_new_job(std::uint64_t last_job);
    // Takes part in the job of `job_number` until it is over.
    void take_part(std::uint64_t job_number, int thread);
    // The current phase has no task left: sleep until another opens, unless the ticket is no longer `word`.
    void sleep_until_phase_opens(std::uint64_t word);
    void finish_task(std::uint64_t job_number, std::int64_t phase);
    // The first phase from `phase` on that has tasks, or kOver. Only for who holds a task or starts the job.
    std::int64_t first_open_phase(std::int64_t phase) const;

    std::mutex one_job_;
    alignas(64) std::atomic<std::uint64_t> ticket_{0};
    alignas(64) std::atomic<std::uint32_t> bell_{0};  // rung (changed) for each job and at the end
    std::atomic<int> num_asleep_{0};
    alignas(64) std::atomic<std::uint32_t> num_wakes_{0};  // changed to wake those who wait for a phase
    std::atomic<int> num_waiting_{0};
    std::atomic<bool> closing_{false};
    std::atomic<Job*> job_{nullptr};
    std::int64_t num_phases_ = 0;
    std::unique_ptr<Phase[]> phases_;
    std::vector<std::thread> workers_;
};

// Threads that a program may keep busy here: the scheduler's affinity mask, cut by the cgroup's CPU quota.
int available_threads();

}  // namespace octavo
