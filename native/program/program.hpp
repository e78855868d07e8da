// The step program: instructions recorded once, replayed for every step by a thread team.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "kernel_units.hpp"
#include "program/instruction.hpp"
#include "program/thread_team.hpp"

namespace octavo {

// Consecutive tokens of one sequence, as a caller names them.
struct ChunkSpec {
    std::int64_t sequence_id = 0, start = 0, length = 0;
};

class Program final : private Job {
public:
    // `experts_per_token`: the most that any layer uses; 0 without mixtures of experts.
    Program(std::shared_ptr<ThreadTeam> team, const Kernels& kernels, std::shared_ptr<KvStore> kv,
            std::int64_t max_rows, std::int64_t max_logit_rows, std::int64_t experts_per_token);

    Values& values() { return values_; }
    RopeTables& ropes() { return ropes_; }
    AttentionPlans& plans() { return plans_; }
    const KvStore& kv() const { return *kv_; }
    void add(std::unique_ptr<Instruction> instruction);
    // What attention of this shape and matrices of so many inputs need of each thread; before the first run.
    void need_attention(const AttentionShape& shape);
    void need_experts(std::int64_t num_experts) { most_experts_ = std::max(most_experts_, num_experts); }
    void need_inputs(std::int64_t inputs) { most_inputs_ = std::max(most_inputs_, inputs); }

    // Entries from `first_index` on are replaced. Throws std::out_of_range for a gap or a block that is not there.
    void set_block_table(std::int64_t sequence_id, std::int64_t first_index, const std::vector<std::int32_t>& blocks);
    void forget(std::int64_t sequence_id) { block_tables_.erase(sequence_id); }

    // Compute the step; `logits` float32 [logit rows, vocabulary]. Throws std::invalid_argument for more rows than planned,
    // positions without a block or a rotation, and a token outside the vocabulary; nothing has run then.
    void run(std::vector<std::int32_t> tokens, const std::vector<ChunkSpec>& chunks,
             std::vector<std::int32_t> logit_rows, float* logits, std::int64_t vocabulary);
    // Seconds of each instruction in the last run with `timed`.
    void set_timed(bool timed) { timed_ = timed; }
    std::vector<double> seconds() const;

    const std::vector<std::unique_ptr<Instruction>>& instructions() const { return instructions_; }
    const Context& context() const { return context_; }
    // Slots, part memory and scratch of all threads; allocated by the first call of this or of run.
    std::int64_t scratch_bytes();

private:
    std::int64_t num_phases() const override { return static_cast<std::int64_t>(instructions_.size()); }
    std::int64_t num_tasks(std::int64_t phase) const override;
    void run_task(std::int64_t phase, std::int64_t task, int thread) override;

    void allocate();
    void check(const std::vector<ChunkSpec>& chunks) const;
    void fill_step(const std::vector<ChunkSpec>& chunks);
    const std::vector<std::int32_t>& table_of(const ChunkSpec& chunk) const;

    std::shared_ptr<ThreadTeam> team_;
    std::shared_ptr<KvStore> kv_;
    Values values_;
    RopeTables ropes_;
    AttentionPlans plans_;
    Routing routing_;
    Context context_;
    std::vector<std::unique_ptr<Instruction>> instructions_;
    std::unordered_map<std::int64_t, std::vector<std::int32_t>> block_tables_;
    StepView step_;

    std::int64_t most_inputs_ = 0, most_head_dim_ = 0, most_heads_per_kv_ = 0, most_kv_heads_ = 0;
    std::int64_t most_experts_ = 0, experts_per_token_ = 0;
    AlignedMemory scratch_;
    std::vector<Worker> workers_;
    bool allocated_ = false, timed_ = false;
    std::vector<std::int64_t> finished_at_;  // nanoseconds, of each phase's last task
    std::int64_t started_at_ = 0;
};

}  // namespace octavo
