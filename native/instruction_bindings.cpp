// How the step program is built from Python: one method of `_kernels.Program` for each instruction.
#include "program_bindings.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>

#include "pack_weight.hpp"
#include "program/instructions/attend.hpp"
#include "program/instructions/experts.hpp"
#include "program/instructions/linear.hpp"
#include "program/instructions/project_qkv.hpp"
#include "program/instructions/rowwise.hpp"

namespace nb = nanobind;

namespace octavo {
namespace {

using Vector = std::optional<nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>>;

std::vector<float> floats_of(const Vector& vector) {
    if (!vector) return {};
    return {vector->data(), vector->data() + vector->shape(0)};
}

Matrix matrix_of(const nb::handle& object) {
    Matrix matrix;
    if (nb::isinstance<PackedMatrix>(object)) {
        const auto packed = nb::cast<std::shared_ptr<PackedMatrix>>(object);
        matrix.packed = &packed->weight();
        matrix.num_bytes = packed->num_bytes();
        matrix.owner = packed;
    } else {
        const auto dense = nb::cast<std::shared_ptr<DenseMatrix>>(object);
        matrix.dense = &dense->weight();
        matrix.num_bytes = dense->num_bytes();
        matrix.owner = dense;
    }
    return matrix;
}

ActivationKind activation_named(const std::string& name) {
    if (name == "silu") return ActivationKind::silu;
    if (name == "gelu_tanh") return ActivationKind::gelu_tanh;
    throw std::invalid_argument("activation '" + name + "' is not one of silu, gelu_tanh");
}

void require(bool condition, const std::string& instruction, const char* what) {
    if (!condition) throw std::invalid_argument(instruction + ": " + what);
}

// Features of an output that one task can make whole groups of.
constexpr std::int64_t kMostLocalGroup = 256;

// What is wrong is found while the program is built, so that a step needs no checks.
struct Builder {
    Program& program;

    const Value& value(std::int64_t id) const { return program.values()[id]; }
    const Value& float_value(const std::string& name, std::int64_t id) const {
        require(value(id).form.grid == Grid::floats, name, "this value must be float, not rounded");
        return value(id);
    }
    BiasedMatrix matrix(const std::string& name, const Value& x, const nb::handle& object, const Vector& bias) const {
        BiasedMatrix biased{matrix_of(object), floats_of(bias)};
        require(biased.matrix.inputs() == x.features, name,
                "the matrix has another number of inputs than its input features");
        require(biased.matrix.input_group() == x.group(), name,
                "the input is quantized in other groups than the matrix takes");
        require(biased.bias.empty() || static_cast<std::int64_t>(biased.bias.size()) == biased.matrix.outputs(), name,
                "the bias has another length than the outputs");
        program.need_inputs(x.features);
        return biased;
    }
    std::vector<float> norm(const std::string& name, const Vector& weight, std::int64_t features) const {
        std::vector<float> values = floats_of(weight);
        require(static_cast<std::int64_t>(values.size()) == features, name,
                "the norm has another length than the features");
        return values;
    }
    void same_features(const std::string& name, const Value& a, const Value& b) const {
        require(a.features == b.features, name, "the values have different numbers of features");
    }
    void layer(const std::string& name, std::int64_t layer, const AttentionShape& shape) const {
        require(layer >= 0 && layer < program.kv().num_layers(), name, "there is no such layer");
        const KvLayer& kv = program.kv().layer(layer);
        require(kv.num_kv_heads == shape.num_kv_heads && kv.head_dim == shape.head_dim, name,
                "the layer's KV memory has another shape");
        require(shape.num_kv_heads > 0 && shape.num_heads % shape.num_kv_heads == 0, name,
                "kv heads must divide the heads");
    }
    void rope(const std::string& name, std::int64_t rope, std::int64_t head_dim) const {
        require(rope < program.ropes().size(), name, "there is no such rotation");
        require(rope < 0 || 2 * program.ropes().half(rope) <= head_dim, name, "the rotation is wider than a head");
    }
};

void add_linear(Program& program, const std::string& name, std::int64_t x, const nb::list& matrices,
                const std::vector<Vector>& biases, const std::vector<std::int64_t>& outs) {
    const Builder build{program};
    require(nb::len(matrices) == outs.size() && biases.size() == outs.size(), name,
            "matrices, biases and outs differ in number");
    std::vector<BiasedMatrix> biased;
    std::vector<Value> values;
    for (std::size_t i = 0; i < outs.size(); ++i) {
        biased.push_back(build.matrix(name, build.value(x), matrices[i], biases[i]));
        values.push_back(build.float_value(name, outs[i]));
        require(values.back().features == biased.back().matrix.outputs(), name,
                "an output has another number of features");
    }
    program.add(make_linear(name, build.value(x), std::move(biased), std::move(values)));
}

void add_linear_add(Program& program, const std::string& name, std::int64_t x, const nb::handle& matrix,
                    const Vector& bias, std::int64_t residual) {
    const Builder build{program};
    BiasedMatrix biased = build.matrix(name, build.value(x), matrix, bias);
    require(build.float_value(name, residual).features == biased.matrix.outputs(), name,
            "the residual has another number of features");
    program.add(make_linear_add(name, build.value(x), std::move(biased), build.value(residual)));
}

void add_linear_gated(Program& program, const std::string& name, std::int64_t x, const nb::handle& gate,
                      const Vector& gate_bias, const nb::handle& up, const Vector& up_bias,
                      const std::string& activation, std::int64_t out) {
    const Builder build{program};
    const Value& y = build.value(out);
    BiasedMatrix gates = build.matrix(name, build.value(x), gate, gate_bias),
                 ups = build.matrix(name, build.value(x), up, up_bias);
    require(gates.matrix.outputs() == y.features && ups.matrix.outputs() == y.features, name,
            "gate, up and output differ in features");
    require(y.form.is_local() && y.form.group <= kMostLocalGroup, name,
            "an output rounded by whole rows, or in groups above 256, needs its own instruction");
    program.add(
        make_linear_gated(name, build.value(x), std::move(gates), std::move(ups), activation_named(activation), y));
}

void add_project_qkv(Program& program, const std::string& name, std::int64_t x, const nb::handle& q,
                     const nb::handle& k, const nb::handle& v, const Vector& q_bias, const Vector& k_bias,
                     const Vector& v_bias, const Vector& q_norm, const Vector& k_norm, std::pair<float, float> eps,
                     std::int64_t rope, std::int64_t layer, const AttentionShape& shape, std::int64_t q_out) {
    const Builder build{program};
    build.layer(name, layer, shape);
    build.rope(name, rope, shape.head_dim);
    QkvProjection p;
    const Value& input = build.value(x);
    p.q = build.matrix(name, input, q, q_bias);
    p.k = build.matrix(name, input, k, k_bias);
    p.v = build.matrix(name, input, v, v_bias);
    require(p.q.matrix.outputs() == shape.num_heads * shape.head_dim, name,
            "q has another number of outputs than the heads");
    require(p.k.matrix.outputs() == shape.num_kv_heads * shape.head_dim && p.v.matrix.outputs() == p.k.matrix.outputs(),
            name, "k or v has another number of outputs than the kv heads");
    require(build.float_value(name, q_out).features == p.q.matrix.outputs(), name,
            "q's output has another number of features");
    if (q_norm) p.q_norm = {build.norm(name, q_norm, shape.head_dim), eps.first};
    if (k_norm) p.k_norm = {build.norm(name, k_norm, shape.head_dim), eps.second};
    p.rope = rope;
    p.layer = layer;
    p.shape = shape;
    program.add(make_project_qkv(name, input, std::move(p), build.value(q_out)));
}

void add_attend(Program& program, const std::string& name, std::int64_t q, std::int64_t layer,
                const AttentionShape& shape, std::int64_t out) {
    const Builder build{program};
    build.layer(name, layer, shape);
    const Value &x = build.float_value(name, q), &y = build.value(out);
    require(x.features == shape.num_heads * shape.head_dim && y.features == x.features, name,
            "q or the output has another number of features");
    require(y.form.is_local(), name, "an output rounded by whole rows needs its own instruction");
    require(y.form.group == 0 || shape.heads_per_kv() * shape.head_dim % y.form.group == 0, name,
            "the output's groups do not divide a kv head's features");
    program.need_attention(shape);
    program.add(make_attend(name, x, layer, shape, program.plans().add_window(shape.window), y));
}

void add_logits(Program& program, const std::string& name, std::int64_t x, const nb::handle& matrix, const Vector& bias,
                float softcap) {
    const Builder build{program};
    require(build.value(x).domain == Domain::logits, name, "logits need a value of the logits domain");
    program.add(make_logits(name, build.value(x), build.matrix(name, build.value(x), matrix, bias), softcap));
}

// `mlps`: (gate, gate bias, up, up bias, down, down bias) of each expert.
void add_experts(Program& program, const std::string& name, std::int64_t x, const nb::handle& router,
                 const nb::list& mlps, std::int64_t experts_per_token, bool renormalize, const std::string& activation,
                 std::int64_t routed_x, std::int64_t routed_hidden, std::int64_t rounded_hidden, std::int64_t routed_y,
                 std::int64_t out) {
    const Builder build{program};
    ExpertsSpec spec;
    spec.router = build.matrix(name, build.float_value(name, x), router, std::nullopt).matrix;
    spec.experts_per_token = experts_per_token;
    spec.renormalize = renormalize;
    spec.activation = activation_named(activation);
    const RoutedValues routed{build.value(routed_x), build.value(routed_hidden), build.value(rounded_hidden),
                              build.float_value(name, routed_y)};
    for (const nb::handle mlp : mlps) {
        const auto bias = [&](int i) { return nb::cast<Vector>(mlp[i]); };
        spec.mlps.push_back({build.matrix(name, routed.x, mlp[0], bias(1)),
                             build.matrix(name, routed.x, mlp[2], bias(3)),
                             build.matrix(name, routed.rounded_hidden, mlp[4], bias(5))});
        require(spec.mlps.back().gate.matrix.outputs() == routed.hidden.features &&
                    spec.mlps.back().up.matrix.outputs() == routed.hidden.features &&
                    spec.mlps.back().down.matrix.outputs() == routed.y.features,
                name, "an expert has other sizes");
    }
    require(spec.router.dense && spec.router.outputs() == spec.num_experts(), name,
            "the router must be dense, one output for each expert");
    require(experts_per_token >= 1 && experts_per_token <= spec.num_experts(), name,
            "experts_per_token is outside 1..experts");
    require(program.values().max_rows(Domain::routed) >= program.values().max_rows(Domain::tokens) * experts_per_token,
            name, "the program was made for fewer experts per token");
    require(routed.hidden.form.is_local() && routed.hidden.form.group <= kMostLocalGroup, name,
            "hidden features rounded by whole rows, or in groups above 256, need a value of their own");
    build.same_features(name, routed.hidden, routed.rounded_hidden);
    build.same_features(name, routed.y, build.float_value(name, out));
    program.need_experts(spec.num_experts());
    for (auto& phase : make_experts(name, build.value(x), std::move(spec), routed, build.value(out)))
        program.add(std::move(phase));
}

void add_embed(Program& program, const std::string& name, const nb::handle& matrix, float multiplier,
               std::int64_t out) {
    const Builder build{program};
    Matrix m = matrix_of(matrix);
    require(m.inputs() == build.float_value(name, out).features, name, "the matrix has another width than the output");
    program.add(make_embed(name, std::move(m), multiplier, build.value(out)));
}

void add_norm(Program& program, const std::string& name, std::int64_t x, const Vector& weight, float eps,
              std::int64_t out) {
    const Builder build{program};
    build.same_features(name, build.float_value(name, x), build.value(out));
    program.need_inputs(build.value(x).features);
    program.add(
        make_norm(name, build.value(x), build.norm(name, weight, build.value(x).features), eps, build.value(out)));
}

void add_head_norm(Program& program, const std::string& name, std::int64_t x, const Vector& weight, float eps) {
    const Builder build{program};
    std::vector<float> values = floats_of(weight);
    require(!values.empty() && build.float_value(name, x).features % static_cast<std::int64_t>(values.size()) == 0,
            name, "heads must divide the features");
    program.add(make_head_norm(name, build.value(x), std::move(values), eps));
}

void add_quantize(Program& program, const std::string& name, std::int64_t x, std::int64_t out) {
    const Builder build{program};
    build.same_features(name, build.float_value(name, x), build.value(out));
    require(build.value(out).form.grid != Grid::floats, name, "the output must be rounded");
    program.add(make_quantize(name, build.value(x), build.value(out)));
}

void add_rope(Program& program, const std::string& name, std::int64_t x, std::int64_t rope, std::int64_t head_dim) {
    const Builder build{program};
    build.rope(name, rope, head_dim);
    require(head_dim > 0 && build.float_value(name, x).features % head_dim == 0, name,
            "heads must divide the features");
    program.add(make_rope(name, build.value(x), rope, head_dim));
}

void add_write_kv(Program& program, const std::string& name, std::int64_t k, std::int64_t v, std::int64_t layer,
                  const AttentionShape& shape) {
    const Builder build{program};
    build.layer(name, layer, shape);
    build.same_features(name, build.float_value(name, k), build.float_value(name, v));
    require(build.value(k).features == shape.num_kv_heads * shape.head_dim, name,
            "k has another number of features than the kv heads");
    program.add(make_write_kv(name, build.value(k), build.value(v), layer, shape));
}

void add_gated(Program& program, const std::string& name, std::int64_t gate, std::int64_t up,
               const std::string& activation, std::int64_t out) {
    const Builder build{program};
    build.same_features(name, build.float_value(name, gate), build.float_value(name, up));
    build.same_features(name, build.value(gate), build.value(out));
    program.need_inputs(build.value(gate).features);
    program.add(make_gated(name, build.value(gate), build.value(up), activation_named(activation), build.value(out)));
}

void add_add(Program& program, const std::string& name, std::int64_t x, std::int64_t y, std::int64_t out) {
    const Builder build{program};
    build.same_features(name, build.float_value(name, x), build.float_value(name, y));
    build.same_features(name, build.value(x), build.float_value(name, out));
    program.add(make_add(name, build.value(x), build.value(y), build.value(out)));
}

void add_gather(Program& program, const std::string& name, std::int64_t x, std::int64_t out) {
    const Builder build{program};
    build.same_features(name, build.float_value(name, x), build.float_value(name, out));
    require(build.value(x).domain == Domain::tokens && build.value(out).domain == Domain::logits, name,
            "it goes from tokens to logits");
    program.add(make_gather(name, build.value(x), build.value(out)));
}

void add_copy(Program& program, const std::string& name, std::int64_t x, std::int64_t out) {
    const Builder build{program};
    build.same_features(name, build.float_value(name, x), build.float_value(name, out));
    require(build.value(x).domain == build.value(out).domain, name, "both have the same rows");
    program.add(make_copy(name, build.value(x), build.value(out)));
}

void bind_rowwise(nb::class_<Program>& type) {
    type.def("embed", &add_embed);
    type.def("norm", &add_norm, nb::arg("name"), nb::arg("x"), nb::arg("weight").none(), nb::arg("eps"),
             nb::arg("out"));
    type.def("head_norm", &add_head_norm);
    type.def("quantize", &add_quantize);
    type.def("rope", &add_rope);
    type.def("write_kv", &add_write_kv);
    type.def("gated", &add_gated);
    type.def("add", &add_add);
    type.def("gather", &add_gather);
    type.def("copy", &add_copy);
}

void bind_products(nb::class_<Program>& type) {
    type.def("linear", &add_linear, nb::arg("name"), nb::arg("x"), nb::arg("matrices"), nb::arg("biases"),
             nb::arg("outs"));
    type.def("linear_add", &add_linear_add, nb::arg("name"), nb::arg("x"), nb::arg("matrix"), nb::arg("bias").none(),
             nb::arg("residual"));
    type.def("linear_gated", &add_linear_gated, nb::arg("name"), nb::arg("x"), nb::arg("gate"),
             nb::arg("gate_bias").none(), nb::arg("up"), nb::arg("up_bias").none(), nb::arg("activation"),
             nb::arg("out"));
    type.def("project_qkv", &add_project_qkv, nb::arg("name"), nb::arg("x"), nb::arg("q"), nb::arg("k"), nb::arg("v"),
             nb::arg("q_bias").none(), nb::arg("k_bias").none(), nb::arg("v_bias").none(), nb::arg("q_norm").none(),
             nb::arg("k_norm").none(), nb::arg("eps"), nb::arg("rope"), nb::arg("layer"), nb::arg("shape"),
             nb::arg("q_out"));
    type.def("attend", &add_attend, nb::arg("name"), nb::arg("q"), nb::arg("layer"), nb::arg("shape"), nb::arg("out"));
    type.def("experts", &add_experts, nb::arg("name"), nb::arg("x"), nb::arg("router"), nb::arg("mlps"),
             nb::arg("experts_per_token"), nb::arg("renormalize"), nb::arg("activation"), nb::arg("routed_x"),
             nb::arg("routed_hidden"), nb::arg("rounded_hidden"), nb::arg("routed_y"), nb::arg("out"));
    type.def("logits", &add_logits, nb::arg("name"), nb::arg("x"), nb::arg("matrix"), nb::arg("bias").none(),
             nb::arg("softcap"));
}

}  // namespace

void bind_instructions(nb::class_<Program>& type) {
    bind_rowwise(type);
    bind_products(type);
}

}  // namespace octavo
