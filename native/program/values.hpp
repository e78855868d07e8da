// Values: what flows between instructions. A value is a view on a slot; values whose lifetimes do not overlap may
// share one. Slots get their memory once, for the largest step.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/rows.hpp"
#include "program/aligned_memory.hpp"

namespace octavo {

// Rows of a value: one for each token of the step, for each row whose logits are wanted, or for each expert a token uses.
enum class Domain { tokens, logits, routed };

// What a value's numbers are: float32 as computed, float32 rounded to E4M3 (MXFP8: by scales that are powers of two), or
// int8.
enum class Grid { floats, e4m3, mxfp8, int8 };

struct Form {
    Grid grid = Grid::floats;
    std::int64_t group = 0;  // features that share a scale, and, if int8, a sum; 0: all of the row
    ScaleSource source = ScaleSource::group;
    float fixed_scale = 0.0f;

    // Whether a row can be made piece by piece, by who does not see the rest of it.
    bool is_local() const { return grid == Grid::floats || source != ScaleSource::row; }
};

struct Value {
    std::int64_t slot = 0;
    std::int64_t features = 0;
    Form form;
    Domain domain = Domain::tokens;

    bool is_quantized() const { return form.grid == Grid::int8; }
    bool is_rounded() const { return form.grid == Grid::e4m3 || form.grid == Grid::mxfp8; }
    // Features that share a sum of codes; 0 for floats.
    std::int64_t group() const { return is_quantized() ? form.group : 0; }
};

class Values {
public:
    Values(std::int64_t max_rows, std::int64_t max_logit_rows, std::int64_t experts_per_token)
        : max_rows_(max_rows), max_logit_rows_(max_logit_rows), max_routed_rows_(max_rows * experts_per_token) {}

    static std::int64_t float_row_bytes(std::int64_t features);
    static std::int64_t quantized_row_bytes(std::int64_t features, std::int64_t group);

    std::int64_t add_slot(std::int64_t bytes_per_row, Domain domain);
    // Throws std::invalid_argument if a row does not fit the slot.
    std::int64_t add(const Value& value);
    // Throws std::out_of_range for an unknown id.
    const Value& operator[](std::int64_t id) const { return values_.at(static_cast<std::size_t>(id)); }

    // Memory for all slots; no slot can be added afterwards.
    void allocate();
    Rows rows(const Value& value) const;
    QuantizedRows quantized(const Value& value) const;
    std::int64_t max_rows(Domain domain) const {
        return domain == Domain::tokens ? max_rows_ : domain == Domain::logits ? max_logit_rows_ : max_routed_rows_;
    }
    std::int64_t num_bytes() const { return static_cast<std::int64_t>(memory_.num_bytes()); }

private:
    struct Slot {
        std::int64_t bytes_per_row;
        Domain domain;
        std::byte* memory;
    };

    std::int64_t max_rows_, max_logit_rows_, max_routed_rows_;
    std::vector<Slot> slots_;
    std::vector<Value> values_;
    AlignedMemory memory_;
};

}  // namespace octavo
