#include "program/program.hpp"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>

namespace octavo {
namespace {

std::int64_t now_nanoseconds() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

std::int64_t part_floats(std::int64_t rows, std::int64_t head_dim) { return rows * (head_dim + 2); }

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument(what); }

}  // namespace

Program::Program(std::shared_ptr<ThreadTeam> team, const Kernels& kernels, std::shared_ptr<KvStore> kv,
                 std::int64_t max_rows, std::int64_t max_logit_rows, std::int64_t experts_per_token)
    : team_(std::move(team)),
      kv_(std::move(kv)),
      values_(max_rows, max_logit_rows, experts_per_token),
      experts_per_token_(experts_per_token) {
    context_ = {&kernels, team_->num_threads(), kv_.get(), &values_, &ropes_, &plans_, &routing_};
}

void Program::add(std::unique_ptr<Instruction> instruction) {
    if (allocated_) refuse("the program has run: no instruction can be added");
    instructions_.push_back(std::move(instruction));
}

void Program::need_attention(const AttentionShape& shape) {
    most_head_dim_ = std::max(most_head_dim_, shape.head_dim);
    most_heads_per_kv_ = std::max(most_heads_per_kv_, shape.heads_per_kv());
    most_kv_heads_ = std::max(most_kv_heads_, shape.num_kv_heads);
}

void Program::allocate() {
    if (allocated_) return;
    values_.allocate();
    if (most_head_dim_ > 0) {
        plans_.allocate(part_floats(kMostSplitQueries * most_heads_per_kv_, most_head_dim_), most_kv_heads_);
    }
    if (most_experts_ > 0) routing_.allocate(values_.max_rows(Domain::tokens), most_experts_, experts_per_token_);
    const std::int64_t rows = kMostQueries * most_heads_per_kv_;
    const std::int64_t attention_floats = 2 * part_floats(rows, most_head_dim_) + rows * most_head_dim_;
    const std::int64_t floats = std::max({kScratchFloats, attention_floats, most_inputs_, round_up(most_experts_, 16)});
    const auto kernel_bytes = static_cast<std::int64_t>(
        context_.kernels->scratch_bytes(most_inputs_, most_head_dim_, most_heads_per_kv_, kMostQueries));
    constexpr std::int64_t page = 4096;  // threads do not share pages
    const std::int64_t per_thread = round_up(floats * 4, page) + round_up(kernel_bytes, page);
    scratch_ = AlignedMemory(static_cast<std::size_t>(per_thread * team_->num_threads()));
    for (int thread = 0; thread < team_->num_threads(); ++thread) {
        std::byte* memory = scratch_.data() + thread * per_thread;
        workers_.push_back({memory + round_up(floats * 4, page), reinterpret_cast<float*>(memory)});
    }
    finished_at_.resize(instructions_.size());
    allocated_ = true;
}

std::int64_t Program::scratch_bytes() {
    allocate();
    return values_.num_bytes() + plans_.num_bytes() + static_cast<std::int64_t>(scratch_.num_bytes());
}

void Program::set_block_table(std::int64_t sequence_id, std::int64_t first_index,
                              const std::vector<std::int32_t>& blocks) {
    std::vector<std::int32_t>& table = block_tables_[sequence_id];
    if (first_index < 0 || first_index > static_cast<std::int64_t>(table.size())) {
        throw std::out_of_range("a block table has no gaps: it holds " + std::to_string(table.size()) + " blocks");
    }
    for (const std::int32_t block : blocks) {
        if (block < 0 || block >= kv_->num_blocks())
            throw std::out_of_range("there is no block " + std::to_string(block));
    }
    table.resize(static_cast<std::size_t>(first_index));
    table.insert(table.end(), blocks.begin(), blocks.end());
}

const std::vector<std::int32_t>& Program::table_of(const ChunkSpec& chunk) const {
    const auto found = block_tables_.find(chunk.sequence_id);
    const std::int64_t covered =
        found == block_tables_.end() ? 0 : static_cast<std::int64_t>(found->second.size()) * kv_->block_size();
    if (chunk.start < 0 || chunk.length < 1 || chunk.start + chunk.length > covered) {
        refuse("sequence " + std::to_string(chunk.sequence_id) + ": positions " + std::to_string(chunk.start) + " to " +
               std::to_string(chunk.start + chunk.length) + ", its blocks cover " + std::to_string(covered));
    }
    return found->second;
}

void Program::check(const std::vector<ChunkSpec>& chunks) const {
    const std::int64_t rows = step_.num_rows();
    if (rows > values_.max_rows(Domain::tokens))
        refuse("a step has at most " + std::to_string(values_.max_rows(Domain::tokens)) + " tokens");
    if (step_.num_logit_rows() > values_.max_rows(Domain::logits)) {
        refuse("a step has at most " + std::to_string(values_.max_rows(Domain::logits)) + " rows of logits");
    }
    std::int64_t total = 0, highest = -1;
    for (const ChunkSpec& chunk : chunks) {
        table_of(chunk);
        total += chunk.length;
        highest = std::max(highest, chunk.start + chunk.length - 1);
    }
    if (total != rows) refuse("chunks hold " + std::to_string(total) + " tokens, given are " + std::to_string(rows));
    for (std::int64_t table = 0; table < ropes_.size(); ++table) {
        if (highest >= ropes_.num_positions(table)) refuse("a rotation lacks position " + std::to_string(highest));
    }
    for (const std::int32_t token : step_.tokens) {
        if (token < 0 || token >= step_.vocabulary)
            refuse("token " + std::to_string(token) + " is outside the vocabulary");
    }
    for (const std::int32_t row : step_.logit_rows) {
        if (row < 0 || row >= rows) refuse("logit row " + std::to_string(row) + " is outside the step");
    }
}

void Program::fill_step(const std::vector<ChunkSpec>& chunks) {
    step_.positions.clear();
    step_.row_blocks.clear();
    step_.chunks.clear();
    std::int64_t first_row = 0;
    for (const ChunkSpec& chunk : chunks) {
        const std::vector<std::int32_t>& table = table_of(chunk);
        step_.chunks.push_back({first_row, chunk.length, chunk.start, table.data()});
        for (std::int64_t position = chunk.start; position < chunk.start + chunk.length; ++position) {
            step_.positions.push_back(static_cast<std::int32_t>(position));
            step_.row_blocks.push_back(table[static_cast<std::size_t>(position / kv_->block_size())]);
        }
        first_row += chunk.length;
    }
}

void Program::run(std::vector<std::int32_t> tokens, const std::vector<ChunkSpec>& chunks,
                  std::vector<std::int32_t> logit_rows, float* logits, std::int64_t vocabulary) {
    allocate();
    step_.tokens = std::move(tokens);
    step_.logit_rows = std::move(logit_rows);
    step_.logits = logits;
    step_.vocabulary = vocabulary;
    check(chunks);
    fill_step(chunks);
    plans_.make(step_, team_->num_threads());
    if (timed_) started_at_ = now_nanoseconds();
    team_->run(*this);
}

std::int64_t Program::num_tasks(std::int64_t phase) const {
    return instructions_[static_cast<std::size_t>(phase)]->num_tasks(context_, step_);
}

void Program::run_task(std::int64_t phase, std::int64_t task, int thread) {
    const auto index = static_cast<std::size_t>(phase);
    instructions_[index]->run(context_, step_, task, workers_[static_cast<std::size_t>(thread)]);
    if (timed_) {
        // Tasks of one phase finish before the next opens, so the latest writer is the last; a race within the phase
        // costs at most one task's spread and only blurs a measurement.
        std::atomic_ref<std::int64_t>(finished_at_[index]).store(now_nanoseconds(), std::memory_order_relaxed);
    }
}

std::vector<double> Program::seconds() const {
    std::vector<double> seconds;
    std::int64_t last = started_at_;
    for (const std::int64_t finished : finished_at_) {
        const std::int64_t end = std::max(finished, last);  // a phase without tasks has an old time
        seconds.push_back(static_cast<double>(end - last) * 1e-9);
        last = end;
    }
    return seconds;
}

}  // namespace octavo
