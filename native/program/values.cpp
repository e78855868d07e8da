#include "program/values.hpp"

#include <stdexcept>
#include <string>

namespace octavo {
namespace {

constexpr std::int64_t kLineBytes = 64;

std::int64_t num_groups(std::int64_t features, std::int64_t group) { return (features + group - 1) / group; }

}  // namespace

std::int64_t Values::float_row_bytes(std::int64_t features) { return round_up(features * 4, kLineBytes); }

std::int64_t Values::quantized_row_bytes(std::int64_t features, std::int64_t group) {
    return round_up(features, kFeatureMultiple) + round_up(8 * num_groups(features, group), kLineBytes);
}

std::int64_t Values::add_slot(std::int64_t bytes_per_row, Domain domain) {
    if (memory_.data() != nullptr) throw std::invalid_argument("the program has run: no slot can be added");
    slots_.push_back({round_up(bytes_per_row, kLineBytes), domain, nullptr});
    return static_cast<std::int64_t>(slots_.size()) - 1;
}

std::int64_t Values::add(const Value& value) {
    const Slot& slot = slots_.at(static_cast<std::size_t>(value.slot));
    const std::int64_t needed =
        value.is_quantized() ? quantized_row_bytes(value.features, value.group()) : float_row_bytes(value.features);
    if (needed > slot.bytes_per_row) {
        throw std::invalid_argument("a row of " + std::to_string(needed) + " bytes does not fit a slot of " +
                                    std::to_string(slot.bytes_per_row));
    }
    values_.push_back(value);
    values_.back().domain = slot.domain;
    return static_cast<std::int64_t>(values_.size()) - 1;
}

void Values::allocate() {
    if (memory_.data() != nullptr) return;
    std::int64_t num_bytes = 0;
    for (const Slot& slot : slots_) num_bytes += slot.bytes_per_row * max_rows(slot.domain);
    memory_ = AlignedMemory(static_cast<std::size_t>(num_bytes));
    std::byte* next = memory_.data();
    for (Slot& slot : slots_) {
        slot.memory = next;
        next += slot.bytes_per_row * max_rows(slot.domain);
    }
}

Rows Values::rows(const Value& value) const {
    const Slot& slot = slots_[static_cast<std::size_t>(value.slot)];
    return {reinterpret_cast<float*>(slot.memory), float_row_bytes(value.features) / 4};
}

// | codes of all rows | scales of all rows | sums of all rows |
QuantizedRows Values::quantized(const Value& value) const {
    const Slot& slot = slots_[static_cast<std::size_t>(value.slot)];
    const std::int64_t rows = max_rows(slot.domain), padded = round_up(value.features, kFeatureMultiple);
    QuantizedRows quantized;
    quantized.padded = padded;
    quantized.group = value.group();
    quantized.source = value.form.source;
    quantized.fixed_scale = value.form.fixed_scale;
    quantized.features = value.features;
    quantized.groups = num_groups(value.features, value.group());
    quantized.codes = reinterpret_cast<std::int8_t*>(slot.memory);
    quantized.scales = reinterpret_cast<float*>(slot.memory + rows * padded);
    quantized.sums = reinterpret_cast<std::int32_t*>(quantized.scales + rows * quantized.groups);
    return quantized;
}

}  // namespace octavo
