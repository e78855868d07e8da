// Keys, values and attention on plain arrays from Python (for tests and measurements).
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "kernel_units.hpp"
#include "program/aligned_memory.hpp"
#include "program/kv_store.hpp"

namespace nb = nanobind;

namespace octavo {
namespace {

template <typename Scalar, int axes>
using Array = nb::ndarray<Scalar, nb::ndim<axes>, nb::c_contig, nb::device::cpu>;

const Kernels& kernels_of(const std::string& unit) { return *(unit.empty() ? best_unit() : unit_named(unit)).kernels; }

void check(bool holds, const char* what) {
    if (!holds) throw std::invalid_argument(what);
}

template <typename Array>
std::int64_t extent(const Array& array, std::size_t axis) {
    return static_cast<std::int64_t>(array.shape(axis));
}

// One sequence's keys and values in one layer: the memory of some blocks and the table that orders them.
class PagedLayer {
public:
    PagedLayer(Array<std::uint8_t, 2> memory, Array<const std::int32_t, 1> block_table, std::int64_t block_size,
               std::int64_t num_kv_heads, std::int64_t head_dim, const std::string& format, std::vector<float> scales)
        : memory_(memory), block_table_(block_table), scales_(std::move(scales)) {
        layer.base = reinterpret_cast<std::byte*>(memory.data());
        layer.block_bytes = extent(memory, 1);
        layer.block_size = block_size, layer.num_kv_heads = num_kv_heads, layer.head_dim = head_dim;
        layer.format = kv_format_named(format);
        if (has_head_scales(layer.format)) layer.head_scales = scales_.data();
        check(static_cast<std::int64_t>(scales_.size()) == (layer.head_scales ? 2 * num_kv_heads : 0),
              "calibrated formats have a scale for the keys and for the values of each kv head, others none");
        check(block_size > 0 && block_size % 16 == 0, "block_size must be a multiple of 16");
        check(layer.block_bytes == bytes_per_block(block_size, num_kv_heads, head_dim, format),
              "memory must be [blocks, PagedLayer.bytes_per_block]");
        for (std::int64_t i = 0; i < extent(block_table, 0); ++i) {
            check(table()[i] >= 0 && table()[i] < extent(memory, 0), "the block table must name blocks of the memory");
        }
    }

    static std::int64_t bytes_per_block(std::int64_t block_size, std::int64_t num_kv_heads, std::int64_t head_dim,
                                        const std::string& format) {
        KvLayer layer;
        layer.block_size = block_size, layer.head_dim = head_dim, layer.format = kv_format_named(format);
        return num_kv_heads * layer.head_bytes();
    }

    const std::int32_t* table() const { return block_table_.data(); }
    std::int64_t num_positions() const { return extent(block_table_, 0) * layer.block_size; }

    KvLayer layer;

private:
    Array<std::uint8_t, 2> memory_;
    Array<const std::int32_t, 1> block_table_;
    std::vector<float> scales_;
};

// keys and values [tokens, kv heads, head_dim], of positions from `first_position`.
void write_kv(const PagedLayer& paged, std::int64_t first_position, Array<const float, 3> keys,
              Array<const float, 3> values, const std::string& unit) {
    const KvLayer& layer = paged.layer;
    const std::int64_t tokens = extent(keys, 0), heads = layer.num_kv_heads;
    check(extent(keys, 1) == heads && extent(keys, 2) == layer.head_dim, "keys must be [tokens, kv heads, head_dim]");
    check(extent(values, 0) == tokens && extent(values, 1) == heads && extent(values, 2) == layer.head_dim,
          "values must have the shape of keys");
    check(first_position >= 0 && first_position + tokens <= paged.num_positions(), "positions must be in the table");
    const Kernels& kernels = kernels_of(unit);
    for (std::int64_t row = 0; row < tokens * heads; ++row) {
        const std::int64_t position = first_position + row / heads, block = paged.table()[position / layer.block_size];
        kernels.write_kv(layer, block, position % layer.block_size, row % heads, keys.data() + row * layer.head_dim,
                         values.data() + row * layer.head_dim);
    }
}

// [rows, head_dim], [rows], [rows]; a row is a (query, head of the kv head).
struct PartArrays {
    Array<float, 2> output;
    Array<float, 1> highest, total;

    AttentionPart view() const {
        check(extent(highest, 0) == rows() && extent(total, 0) == rows(), "a part's arrays must have the same rows");
        return {output.data(), highest.data(), total.data()};
    }
    std::int64_t rows() const { return extent(output, 0); }
};

AttentionShape attention_shape(const KvLayer& layer, std::int64_t num_heads, float scale, float softcap,
                               std::int64_t window) {
    AttentionShape shape;
    shape.num_heads = num_heads, shape.num_kv_heads = layer.num_kv_heads, shape.head_dim = layer.head_dim;
    shape.scale = scale, shape.softcap = softcap, shape.window = window;
    check(num_heads % layer.num_kv_heads == 0, "the query heads must be a multiple of the kv heads");
    return shape;
}

// q [queries, heads, head_dim], the first at `first_position`; keys [first, end) of one part.
void attend_part(const PagedLayer& paged, Array<const float, 3> q, std::int64_t first_position, std::int64_t kv_head,
                 std::int64_t first, std::int64_t end, const PartArrays& out, float scale, float softcap,
                 std::int64_t window, const std::string& unit) {
    const AttentionShape shape = attention_shape(paged.layer, extent(q, 1), scale, softcap, window);
    const std::int64_t queries = extent(q, 0), heads = shape.heads_per_kv();
    check(extent(q, 2) == shape.head_dim && out.rows() == queries * heads && extent(out.output, 1) == shape.head_dim,
          "q must be [queries, heads, head_dim] and the part [queries * heads of a kv head, head_dim]");
    check(kv_head >= 0 && kv_head < shape.num_kv_heads, "kv_head must be one of the layer's");
    check(first >= 0 && first % kKeyTile == 0 && first < end && end <= (first / kKeyPart + 1) * kKeyPart,
          "[first, end) must begin at a tile and lie in one part");
    check(end <= paged.num_positions(), "end must be in the block table");
    const AttentionItem item = {q.data() + kv_head * heads * shape.head_dim,
                                extent(q, 1) * shape.head_dim,
                                queries,
                                first_position,
                                kv_head,
                                paged.table()};
    const Kernels& kernels = kernels_of(unit);
    const AlignedMemory scratch(kernels.scratch_bytes(64, shape.head_dim, heads, queries));
    const AttentionPart part = out.view();
    const nb::gil_scoped_release unlocked;
    kernels.attend_part(shape, paged.layer, item, first, end, part, scratch.data());
}

void fold_part(const PartArrays& into, const PartArrays& part, const std::string& unit) {
    check(into.rows() == part.rows() && extent(into.output, 1) == extent(part.output, 1), "parts must have one shape");
    kernels_of(unit).fold_part(extent(into.output, 1), into.rows(), into.view(), part.view());
}

// y [queries, heads, head_dim]: the heads of `kv_head` are written.
void finish_part(const PagedLayer& paged, const PartArrays& part, std::int64_t kv_head, Array<float, 3> y,
                 const std::string& unit) {
    const AttentionShape shape = attention_shape(paged.layer, extent(y, 1), 1.0f, 0.0f, 0);
    const std::int64_t queries = extent(y, 0), heads = shape.heads_per_kv();
    check(part.rows() == queries * heads && extent(y, 2) == shape.head_dim && kv_head >= 0 &&
              kv_head < shape.num_kv_heads,
          "y must be [queries, heads, head_dim] of the part");
    kernels_of(unit).finish_part(shape, part.view(), queries, y.data() + kv_head * heads * shape.head_dim,
                                 extent(y, 1) * shape.head_dim);
}

}  // namespace
}  // namespace octavo

void bind_attention(nb::module_& module) {
    using namespace octavo;
    nb::class_<PagedLayer>(module, "PagedLayer", "One sequence's keys and values in memory [blocks, bytes_per_block].")
        .def(nb::init<Array<std::uint8_t, 2>, Array<const std::int32_t, 1>, std::int64_t, std::int64_t, std::int64_t,
                      const std::string&, std::vector<float>>(),
             nb::arg("memory").noconvert(), nb::arg("block_table").noconvert(), nb::arg("block_size"),
             nb::arg("num_kv_heads"), nb::arg("head_dim"), nb::arg("format"), nb::arg("scales") = std::vector<float>{})
        .def_static("bytes_per_block", &PagedLayer::bytes_per_block, nb::arg("block_size"), nb::arg("num_kv_heads"),
                    nb::arg("head_dim"), nb::arg("format"));
    nb::class_<PartArrays>(module, "AttentionPart",
                           "Output [rows, head_dim], highest [rows] and total [rows] of a part.")
        .def(
            "__init__",
            [](PartArrays* self, Array<float, 2> output, Array<float, 1> highest, Array<float, 1> total) {
                new (self) PartArrays{output, highest, total};
            },
            nb::arg("output").noconvert(), nb::arg("highest").noconvert(), nb::arg("total").noconvert());
    module.def("write_kv", &write_kv, nb::arg("layer"), nb::arg("first_position"), nb::arg("keys").noconvert(),
               nb::arg("values").noconvert(), nb::arg("unit") = "");
    module.def("attend_part", &attend_part, nb::arg("layer"), nb::arg("q").noconvert(), nb::arg("first_position"),
               nb::arg("kv_head"), nb::arg("first"), nb::arg("end"), nb::arg("out"), nb::arg("scale"),
               nb::arg("softcap") = 0.0f, nb::arg("window") = 0, nb::arg("unit") = "");
    module.def("fold_part", &fold_part, nb::arg("into"), nb::arg("part"), nb::arg("unit") = "");
    module.def("finish_part", &finish_part, nb::arg("layer"), nb::arg("part"), nb::arg("kv_head"),
               nb::arg("y").noconvert(), nb::arg("unit") = "");
    module.attr("KEY_PART") = kKeyPart;
    module.attr("KEY_TILE") = kKeyTile;
}
