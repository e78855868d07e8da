// cos and sin of every position, for each rotation a model has.
#pragma once

#include <cstdint>
#include <vector>

namespace octavo {

class RopeTables {
public:
    std::int64_t add(std::int64_t half) {
        tables_.push_back({half, 0, {}, {}});
        return static_cast<std::int64_t>(tables_.size()) - 1;
    }
    // float32 [num_positions, half] each; replaces what was there. Throws std::out_of_range for an unknown table.
    void set(std::int64_t table, const float* cos, const float* sin, std::int64_t num_positions) {
        Table& t = tables_.at(static_cast<std::size_t>(table));
        t.num_positions = num_positions;
        t.cos = {};  // gone before the new one is there
        t.sin = {};
        t.cos.assign(cos, cos + num_positions * t.half);
        t.sin.assign(sin, sin + num_positions * t.half);
    }
    std::int64_t half(std::int64_t table) const { return tables_.at(static_cast<std::size_t>(table)).half; }
    std::int64_t num_positions(std::int64_t table) const {
        return tables_.at(static_cast<std::size_t>(table)).num_positions;
    }
    std::int64_t size() const { return static_cast<std::int64_t>(tables_.size()); }
    const float* cos(std::int64_t table, std::int64_t position) const {
        return at(table).cos.data() + position * at(table).half;
    }
    const float* sin(std::int64_t table, std::int64_t position) const {
        return at(table).sin.data() + position * at(table).half;
    }

private:
    struct Table {
        std::int64_t half, num_positions;
        std::vector<float> cos, sin;
    };
    const Table& at(std::int64_t table) const { return tables_[static_cast<std::size_t>(table)]; }
    std::vector<Table> tables_;
};

}  // namespace octavo
