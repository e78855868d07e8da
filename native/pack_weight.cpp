#include "pack_weight.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels/linear_layout.hpp"

namespace octavo {
namespace {

constexpr std::int64_t scale_bytes(ScaleFormat format) { return format == ScaleFormat::f32 ? 4 : 2; }
constexpr std::int64_t value_bytes(DenseFormat format) {
    return is_fp8(format) ? 1 : format == DenseFormat::f32 ? 4 : 2;
}

// int32 sums of one group must hold 255 * 127 a code, and the zero point's share.
constexpr std::int64_t kMostGroupInputs = 65536;

void check(const PackedMatrix::Shape& s) {
    const auto refuse = [](const std::string& why) { throw std::invalid_argument("packed matrix: " + why); };
    if (s.bits != 2 && s.bits != 3 && s.bits != 4 && s.bits != 8 && s.bits != kFp4) {
        refuse("codes have 2, 3, 4 or 8 bits, or are FP4's");
    }
    if (s.bits == kFp4 && s.has_zeros) refuse("FP4 codes have no zero points");
    if (!std::isnormal(s.output_scale)) refuse("the output scale must be a number that is not 0");
    if (s.outputs < 1 || s.inputs < 1) refuse("there must be outputs and inputs");
    const bool whole_row = s.group >= s.inputs;
    if (!whole_row && s.group != 16 && s.group != 32 && (s.group < 64 || s.group % 64 != 0)) {
        refuse("a group is 16, 32, a multiple of 64 inputs or a whole row; got " + std::to_string(s.group));
    }
    if (std::min(s.group, s.inputs) > kMostGroupInputs) refuse("a group has at most 65536 inputs");
    if (s.inputs_per_scale < s.inputs && (whole_row || s.inputs_per_scale % s.group != 0 || s.inputs_per_scale < 1)) {
        refuse("a scale covers " + std::to_string(s.inputs_per_scale) + " inputs, not whole groups of " +
               std::to_string(s.group));
    }
}

PackedWeight describe(const PackedMatrix::Shape& s) {
    PackedWeight w;
    w.bits = s.bits;
    w.outputs = s.outputs, w.inputs = s.inputs;
    w.tiles = round_up(s.outputs, kTileOutputs) / kTileOutputs;
    w.group = s.group;
    w.groups = (s.inputs + s.group - 1) / s.group;
    w.groups_per_scale = s.inputs_per_scale >= s.inputs ? w.groups : s.inputs_per_scale / s.group;
    w.scale_groups = (w.groups + w.groups_per_scale - 1) / w.groups_per_scale;
    w.scale_format = s.scale_format;
    w.output_scale = s.output_scale;
    w.tile_bytes = padded_inputs(s.inputs) / kOctetInputs * octet_bytes(s.bits);
    return w;
}

std::int64_t scale_lanes(const PackedWeight& w) { return w.tiles * w.scale_groups * kTileOutputs; }
std::int64_t code_bytes(const PackedWeight& w) { return w.tiles * w.tile_bytes; }
std::int64_t all_scale_bytes(const PackedWeight& w) {
    return round_up(scale_lanes(w) * scale_bytes(w.scale_format), 64);
}

void check(const DenseMatrix::Shape& s) {
    if (s.outputs < 1 || s.inputs < 1) throw std::invalid_argument("dense matrix: there must be outputs and inputs");
    constexpr std::int64_t most = DenseMatrix::kMostScaledInputs;
    if (!is_fp8(s.format) || s.group >= s.inputs || (s.group > 0 && most % s.group == 0)) return;
    throw std::invalid_argument("FP8 matrix: a scale covers a row, or inputs that divide " + std::to_string(most) +
                                "; got " + std::to_string(s.group));
}

DenseWeight describe(const DenseMatrix::Shape& s) {
    DenseWeight w;
    w.outputs = s.outputs, w.inputs = s.inputs;
    w.tiles = round_up(s.outputs, kTileOutputs) / kTileOutputs;
    w.format = s.format;
    w.group = is_fp8(s.format) ? std::min(s.group, s.inputs) : s.inputs;
    w.groups = (s.inputs + w.group - 1) / w.group;
    return w;
}

std::int64_t all_value_bytes(const DenseWeight& w) { return w.tiles * kTileOutputs * w.inputs * value_bytes(w.format); }

// Four codes of `bits` bits, lowest first -> four bytes.
template <int bits>
std::uint32_t spread(std::uint32_t codes) {
    if constexpr (bits == 8) return codes;
    constexpr std::uint32_t pair = (1u << (2 * bits)) - 1, one = (1u << bits) - 1;
    const std::uint32_t pairs = (codes & pair) | (codes & (pair << (2 * bits))) << (16 - 2 * bits);
    constexpr std::uint32_t low = one | one << 16;
    return (pairs & low) | (pairs & (low << bits)) << (8 - bits);
}

// One row of a checkpoint.
struct RowCodes {
    const std::uint8_t* bytes;
    std::int64_t num_bytes;
    std::int64_t inputs;
    std::uint32_t zero;  // the code of what lies beyond the row
};

// The four codes of step `step`, a byte each, out of the `readable` bytes from its first one on.
template <int bits>
std::uint32_t step_codes(const RowCodes& row, std::int64_t step, std::int64_t readable) {
    const std::int64_t bit = step * kStepInputs * bits;
    std::uint32_t word = 0;
    std::memcpy(&word, row.bytes + bit / 8, static_cast<std::size_t>(readable));
    return spread<bits>(word >> (bit % 8));
}

// As step_codes, for steps at a row's end.
template <int bits>
std::uint32_t last_codes(const RowCodes& row, std::int64_t step) {
    const std::int64_t there = std::clamp<std::int64_t>(row.inputs - step * kStepInputs, 0, kStepInputs);
    const std::uint32_t padding = row.zero * 0x01010101u;
    if (there == 0) return padding;
    const std::uint32_t kept = there == kStepInputs ? ~0u : (1u << (8 * there)) - 1;
    const std::int64_t readable = std::min<std::int64_t>(4, row.num_bytes - step * kStepInputs * bits / 8);
    return (step_codes<bits>(row, step, readable) & kept) | (padding & ~kept);
}

void store(std::uint8_t* p, std::uint32_t bytes) { std::memcpy(p, &bytes, sizeof bytes); }

// One output's 8 steps into its four bytes of each plane of an octet.
template <int bits>
void store_octet(const std::uint32_t (&steps)[8], std::uint8_t* octet) {
    if constexpr (bits == 8) {
        for (int i = 0; i < 8; ++i) store(octet + kStepBytes * i, steps[i]);
        return;
    }
    constexpr int planes = bits == 4 ? 4 : 2, steps_per_plane = 8 / planes;
    constexpr std::uint32_t mask = static_cast<std::uint32_t>(low_mask(bits)) * 0x01010101u;
    for (int plane = 0; plane < planes; ++plane) {
        std::uint32_t packed = 0;
        for (int i = 0; i < steps_per_plane; ++i) {
            const int step = plane * steps_per_plane + i;
            packed |= (steps[step] & mask) << low_shift(bits, step);
        }
        store(octet + kStepBytes * plane, packed);
    }
    if constexpr (bits == 3) {
        std::uint32_t third = 0;
        for (int i = 0; i < 8; ++i) third |= ((steps[i] >> 2) & 0x01010101u) << i;
        store(octet + kHighPlane, third);
    }
}

// A row into its lane of a tile, `octets` long.
template <int bits>
void pack_row(const RowCodes& row, std::int64_t octets, std::uint8_t* lane) {
    // An octet is 4 * bits bytes of the row; its last step reads up to 3 more.
    const std::int64_t whole = std::min(row.inputs / kOctetInputs, (row.num_bytes - 3) / (4 * bits));
    std::uint32_t steps[8];
    for (std::int64_t octet = 0; octet < octets; ++octet, lane += octet_bytes(bits)) {
        for (int i = 0; i < 8; ++i) {
            const std::int64_t step = 8 * octet + i;
            steps[i] = octet < whole ? step_codes<bits>(row, step, 4) : last_codes<bits>(row, step);
        }
        store_octet<bits>(steps, lane);
    }
}

using PackRow = void (*)(const RowCodes&, std::int64_t, std::uint8_t*);

PackRow row_packer(int bits) {
    return bits == 8 ? pack_row<8> : bits == 4 || bits == kFp4 ? pack_row<4> : bits == 3 ? pack_row<3> : pack_row<2>;
}

RowCodes row_codes(const PackedWeight& w, const CodeRows& source, std::int64_t output) {
    const auto middle = w.bits == kFp4 ? 0u : static_cast<std::uint32_t>(middle_code(w.bits));
    if (output >= w.outputs) return {nullptr, 0, 0, middle};
    const std::int8_t* last_zero = source.zeros ? source.zeros + (output + 1) * w.scale_groups - 1 : nullptr;
    const std::uint32_t zero = last_zero ? *last_zero + middle : middle;
    return {source.words + output * source.row_bytes, source.row_bytes, w.inputs, zero};
}

// A tile's rows [16, columns], those that exist -> [columns][16]; change() is applied to each element.
template <typename Element, typename Change>
void transpose_rows(const Element* rows, std::int64_t stride, std::int64_t count, std::int64_t columns, auto* out,
                    Change change) {
    for (std::int64_t lane = 0; lane < count; ++lane) {
        const Element* row = rows + lane * stride;
        for (std::int64_t column = 0; column < columns; ++column) {
            out[column * kTileOutputs + lane] = change(row[column]);
        }
    }
}

template <typename Bits>
void transpose_bits(const void* rows, std::int64_t first_row, std::int64_t stride, std::int64_t count,
                    std::int64_t columns, std::byte* out, std::int64_t at) {
    const auto same = [](Bits bits) { return bits; };
    transpose_rows(static_cast<const Bits*>(rows) + first_row * stride, stride, count, columns,
                   reinterpret_cast<Bits*>(out) + at, same);
}

auto transpose_elements(std::int64_t bytes) {
    return bytes == 4   ? transpose_bits<std::uint32_t>
           : bytes == 2 ? transpose_bits<std::uint16_t>
                        : transpose_bits<std::uint8_t>;
}

std::int64_t tile_rows(std::int64_t outputs, std::int64_t tile) {
    return std::min(kTileOutputs, outputs - tile * kTileOutputs);
}

void check_tiles(std::int64_t first_tile, std::int64_t end_tile, std::int64_t tiles) {
    if (first_tile < 0 || end_tile < first_tile || end_tile > tiles) {
        throw std::invalid_argument("tiles [" + std::to_string(first_tile) + ", " + std::to_string(end_tile) +
                                    ") are not within the matrix's " + std::to_string(tiles));
    }
}

}  // namespace

PackedMatrix::PackedMatrix(const Shape& shape) {
    check(shape);
    weight_ = describe(shape);
    memory_ = AlignedMemory(static_cast<std::size_t>(num_bytes_of(shape)));
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(memory_.data());
    weight_.codes = bytes;
    weight_.scales = bytes + code_bytes(weight_);
    if (shape.has_zeros) weight_.zeros = bytes + code_bytes(weight_) + all_scale_bytes(weight_);
}

std::int64_t PackedMatrix::num_bytes_of(const Shape& shape) {
    check(shape);
    const PackedWeight w = describe(shape);
    return code_bytes(w) + all_scale_bytes(w) + (shape.has_zeros ? scale_lanes(w) : 0);
}

void PackedMatrix::fill(const CodeRows& source, std::int64_t first_tile, std::int64_t end_tile) {
    const PackedWeight& w = weight_;
    check_tiles(first_tile, end_tile, w.tiles);
    auto* codes = reinterpret_cast<std::uint8_t*>(memory_.data());
    std::byte* scales = memory_.data() + code_bytes(w);
    auto* zeros = codes + code_bytes(w) + all_scale_bytes(w);
    const PackRow pack = row_packer(w.bits);
    const std::int32_t middle = middle_code(w.bits);
    for (std::int64_t tile = first_tile; tile < end_tile; ++tile) {
        const std::int64_t first = tile * kTileOutputs, count = tile_rows(w.outputs, tile);
        for (std::int64_t lane = 0; lane < kTileOutputs; ++lane) {
            std::uint8_t* out = codes + tile * w.tile_bytes + kStepInputs * lane;
            pack(row_codes(w, source, first + lane), padded_inputs(w.inputs) / kOctetInputs, out);
        }
        const std::int64_t at = first * w.scale_groups;
        const auto transpose = transpose_elements(scale_bytes(w.scale_format));
        transpose(source.scales, first, w.scale_groups, count, w.scale_groups, scales, at);
        if (w.zeros == nullptr) continue;
        const auto unsign = [middle](std::int8_t zero) { return static_cast<std::uint8_t>(zero + middle); };
        transpose_rows(source.zeros + at, w.scale_groups, count, w.scale_groups, zeros + at, unsign);
    }
}

DenseMatrix::DenseMatrix(const Shape& shape) : memory_(static_cast<std::size_t>(num_bytes_of(shape))) {
    weight_ = describe(shape);
    weight_.values = memory_.data();
    if (is_fp8(shape.format))
        weight_.scales = reinterpret_cast<const float*>(memory_.data() + all_value_bytes(weight_));
}

std::int64_t DenseMatrix::num_bytes_of(const Shape& shape) {
    check(shape);
    const DenseWeight w = describe(shape);
    return all_value_bytes(w) + (is_fp8(shape.format) ? w.tiles * w.groups * kTileOutputs * 4 : 0);
}

void DenseMatrix::fill(const void* values, std::int64_t row_elements, const float* scales, std::int64_t first_tile,
                       std::int64_t end_tile) {
    check_tiles(first_tile, end_tile, weight_.tiles);
    if ((scales != nullptr) != is_fp8(weight_.format)) throw std::invalid_argument("FP8 has scales, nothing else has");
    const auto transpose = transpose_elements(value_bytes(weight_.format));
    auto* packed_scales = reinterpret_cast<float*>(memory_.data() + all_value_bytes(weight_));
    const auto in_units = [unit = fp8_unit(weight_.format)](float scale) { return scale * unit; };
    for (std::int64_t tile = first_tile; tile < end_tile; ++tile) {
        const std::int64_t first = tile * kTileOutputs, rows = tile_rows(weight_.outputs, tile);
        transpose(values, first, row_elements, rows, weight_.inputs, memory_.data(), first * weight_.inputs);
        if (scales == nullptr) continue;
        const std::int64_t groups = weight_.groups;
        transpose_rows(scales + first * groups, groups, rows, groups, packed_scales + first * groups, in_units);
    }
}

}  // namespace octavo
