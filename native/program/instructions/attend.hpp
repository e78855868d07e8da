// Attention of one layer over its blocks (kernels/attention_item.hpp says what is computed).
#pragma once

#include <memory>

#include "program/instruction.hpp"

namespace octavo {

// The form of `out` must be local, with groups that divide the features of one kv head's query heads.
std::unique_ptr<Instruction> make_attend(std::string name, Value q, std::int64_t layer, AttentionShape shape,
                                         std::int64_t plan, Value out);

}  // namespace octavo
