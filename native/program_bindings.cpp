// The step program in Python: octavo.ops.native uses it through `_kernels.Program` and its companions.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <tuple>

#include "pack_weight.hpp"
#include "program/instructions/attend.hpp"
#include "program/instructions/experts.hpp"
#include "program/instructions/linear.hpp"
#include "program/instructions/project_qkv.hpp"
#include "program/instructions/rowwise.hpp"
#include "program/measure.hpp"
#include "program/program.hpp"

namespace nb = nanobind;

namespace octavo {
namespace {

using Vector = std::optional<nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>>;
using Table = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using LogitsArray = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Chunks = std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t>>;

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

Domain domain_named(const std::string& name) {
    if (name == "tokens") return Domain::tokens;
    if (name == "logits") return Domain::logits;
    if (name == "routed") return Domain::routed;
    throw std::invalid_argument("domain '" + name + "' is not one of tokens, logits, routed");
}

void require(bool condition, const std::string& instruction, const char* what) {
    if (!condition) throw std::invalid_argument(instruction + ": " + what);
}

// What is wrong is found while the program is built, so that a step needs no checks.
struct Builder {
    Program& program;

    const Value& value(std::int64_t id) const { return program.values()[id]; }
    const Value& float_value(const std::string& name, std::int64_t id) const {
        require(!value(id).is_quantized(), name, "this value must be float");
        return value(id);
    }
    BiasedMatrix matrix(const std::string& name, const Value& x, const nb::handle& object, const Vector& bias) const {
        BiasedMatrix biased{matrix_of(object), floats_of(bias)};
        require(biased.matrix.inputs() == x.features, name, "the matrix has another number of inputs than its input features");
        require(biased.matrix.input_group() == x.group, name, "the input is quantized in other groups than the matrix takes");
        require(biased.bias.empty() || static_cast<std::int64_t>(biased.bias.size()) == biased.matrix.outputs(), name,
                "the bias has another length than the outputs");
        program.need_inputs(x.features);
        return biased;
    }
    std::vector<float> norm(const std::string& name, const Vector& weight, std::int64_t features) const {
        std::vector<float> values = floats_of(weight);
        require(static_cast<std::int64_t>(values.size()) == features, name, "the norm has another length than the features");
        return values;
    }
    void same_features(const std::string& name, const Value& a, const Value& b) const {
        require(a.features == b.features, name, "the values have different numbers of features");
    }
    void layer(const std::string& name, std::int64_t layer, const AttentionShape& shape) const {
        require(layer >= 0 && layer < program.kv().num_layers(), name, "there is no such layer");
        const KvLayer& kv = program.kv().layer(layer);
        require(kv.num_kv_heads == shape.num_kv_heads && kv.head_dim == shape.head_dim, name, "the layer's KV memory has another shape");
        require(shape.num_kv_heads > 0 && shape.num_heads % shape.num_kv_heads == 0, name, "kv heads must divide the heads");
    }
    void rope(const std::string& name, std::int64_t rope, std::int64_t head_dim) const {
        require(rope < program.ropes().size(), name, "there is no such rotation");
        require(rope < 0 || 2 * program.ropes().half(rope) <= head_dim, name, "the rotation is wider than a head");
    }
};

void add_linear(Program& program, const std::string& name, std::int64_t x, const nb::list& matrices,
                const std::vector<Vector>& biases, const std::vector<std::int64_t>& outs) {
    const Builder build{program};
    require(nb::len(matrices) == outs.size() && biases.size() == outs.size(), name, "matrices, biases and outs differ in number");
    std::vector<BiasedMatrix> biased;
    std::vector<Value> values;
    for (std::size_t i = 0; i < outs.size(); ++i) {
        biased.push_back(build.matrix(name, build.value(x), matrices[i], biases[i]));
        values.push_back(build.float_value(name, outs[i]));
        require(values.back().features == biased.back().matrix.outputs(), name, "an output has another number of features");
    }
    program.add(make_linear(name, build.value(x), std::move(biased), std::move(values)));
}

void add_linear_add(Program& program, const std::string& name, std::int64_t x, const nb::handle& matrix,
                    const Vector& bias, std::int64_t residual) {
    const Builder build{program};
    BiasedMatrix biased = build.matrix(name, build.value(x), matrix, bias);
    require(build.float_value(name, residual).features == biased.matrix.outputs(), name, "the residual has another number of features");
    program.add(make_linear_add(name, build.value(x), std::move(biased), build.value(residual)));
}

void add_linear_gated(Program& program, const std::string& name, std::int64_t x, const nb::handle& gate,
                      const Vector& gate_bias, const nb::handle& up, const Vector& up_bias, const std::string& activation,
                      std::int64_t out) {
    const Builder build{program};
    const Value& y = build.value(out);
    BiasedMatrix gates = build.matrix(name, build.value(x), gate, gate_bias), ups = build.matrix(name, build.value(x), up, up_bias);
    require(gates.matrix.outputs() == y.features && ups.matrix.outputs() == y.features, name, "gate, up and output differ in features");
    require(!y.is_quantized() || y.group <= 256, name, "an output quantized in groups above 256 needs its own instruction");
    program.add(make_linear_gated(name, build.value(x), std::move(gates), std::move(ups), activation_named(activation), y));
}

void add_project_qkv(Program& program, const std::string& name, std::int64_t x, const nb::handle& q, const nb::handle& k,
                     const nb::handle& v, const Vector& q_bias, const Vector& k_bias, const Vector& v_bias,
                     const Vector& q_norm, const Vector& k_norm, std::pair<float, float> eps, std::int64_t rope,
                     std::int64_t layer, const AttentionShape& shape, std::int64_t q_out) {
    const Builder build{program};
    build.layer(name, layer, shape);
    build.rope(name, rope, shape.head_dim);
    QkvProjection p;
    const Value& input = build.value(x);
    p.q = build.matrix(name, input, q, q_bias);
    p.k = build.matrix(name, input, k, k_bias);
    p.v = build.matrix(name, input, v, v_bias);
    require(p.q.matrix.outputs() == shape.num_heads * shape.head_dim, name, "q has another number of outputs than the heads");
    require(p.k.matrix.outputs() == shape.num_kv_heads * shape.head_dim && p.v.matrix.outputs() == p.k.matrix.outputs(), name,
            "k or v has another number of outputs than the kv heads");
    require(build.float_value(name, q_out).features == p.q.matrix.outputs(), name, "q's output has another number of features");
    if (q_norm) p.q_norm = {build.norm(name, q_norm, shape.head_dim), eps.first};
    if (k_norm) p.k_norm = {build.norm(name, k_norm, shape.head_dim), eps.second};
    p.rope = rope;
    p.layer = layer;
    p.shape = shape;
    program.add(make_project_qkv(name, input, std::move(p), build.value(q_out)));
}

void add_attend(Program& program, const std::string& name, std::int64_t q, std::int64_t layer, const AttentionShape& shape,
                std::int64_t out) {
    const Builder build{program};
    build.layer(name, layer, shape);
    const Value &x = build.float_value(name, q), &y = build.value(out);
    require(x.features == shape.num_heads * shape.head_dim && y.features == x.features, name, "q or the output has another number of features");
    require(!y.is_quantized() || shape.heads_per_kv() * shape.head_dim % y.group == 0, name, "the output's groups do not divide a kv head's features");
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
void add_experts(Program& program, const std::string& name, std::int64_t x, const nb::handle& router, const nb::list& mlps,
                 std::int64_t experts_per_token, bool renormalize, const std::string& activation, std::int64_t routed_x,
                 std::int64_t routed_hidden, std::int64_t routed_y, std::int64_t out) {
    const Builder build{program};
    ExpertsSpec spec;
    spec.router = build.matrix(name, build.float_value(name, x), router, std::nullopt).matrix;
    spec.experts_per_token = experts_per_token;
    spec.renormalize = renormalize;
    spec.activation = activation_named(activation);
    const RoutedValues routed{build.value(routed_x), build.value(routed_hidden), build.float_value(name, routed_y)};
    for (const nb::handle mlp : mlps) {
        const auto bias = [&](int i) { return nb::cast<Vector>(mlp[i]); };
        spec.mlps.push_back({build.matrix(name, routed.x, mlp[0], bias(1)), build.matrix(name, routed.x, mlp[2], bias(3)),
                             build.matrix(name, routed.hidden, mlp[4], bias(5))});
        require(spec.mlps.back().gate.matrix.outputs() == routed.hidden.features &&
                    spec.mlps.back().up.matrix.outputs() == routed.hidden.features &&
                    spec.mlps.back().down.matrix.outputs() == routed.y.features, name, "an expert has other sizes");
    }
    require(spec.router.dense && spec.router.outputs() == spec.num_experts(), name, "the router must be dense, one output for each expert");
    require(experts_per_token >= 1 && experts_per_token <= spec.num_experts(), name, "experts_per_token is outside 1..experts");
    require(program.values().max_rows(Domain::routed) >= program.values().max_rows(Domain::tokens) * experts_per_token, name,
            "the program was made for fewer experts per token");
    require(!routed.hidden.is_quantized() || routed.hidden.group <= 256, name, "hidden features in groups above 256 are not supported");
    build.same_features(name, routed.y, build.float_value(name, out));
    program.need_experts(spec.num_experts());
    for (auto& phase : make_experts(name, build.value(x), std::move(spec), routed, build.value(out))) program.add(std::move(phase));
}

void bind_instructions(nb::class_<Program>& type) {
    type.def("embed", [](Program& p, const std::string& name, const nb::handle& matrix, float multiplier, std::int64_t out) {
        const Builder build{p};
        Matrix m = matrix_of(matrix);
        require(m.inputs() == build.float_value(name, out).features, name, "the matrix has another width than the output");
        p.add(make_embed(name, std::move(m), multiplier, build.value(out)));
    });
    type.def("norm", [](Program& p, const std::string& name, std::int64_t x, const Vector& weight, float eps, std::int64_t out) {
        const Builder build{p};
        build.same_features(name, build.float_value(name, x), build.value(out));
        p.need_inputs(build.value(x).features);
        p.add(make_norm(name, build.value(x), build.norm(name, weight, build.value(x).features), eps, build.value(out)));
    }, nb::arg("name"), nb::arg("x"), nb::arg("weight").none(), nb::arg("eps"), nb::arg("out"));
    type.def("head_norm", [](Program& p, const std::string& name, std::int64_t x, const Vector& weight, float eps) {
        const Builder build{p};
        std::vector<float> values = floats_of(weight);
        require(!values.empty() && build.float_value(name, x).features % static_cast<std::int64_t>(values.size()) == 0, name, "heads must divide the features");
        p.add(make_head_norm(name, build.value(x), std::move(values), eps));
    });
    type.def("quantize", [](Program& p, const std::string& name, std::int64_t x, std::int64_t out) {
        const Builder build{p};
        build.same_features(name, build.float_value(name, x), build.value(out));
        require(build.value(out).is_quantized(), name, "the output must be quantized");
        p.add(make_quantize(name, build.value(x), build.value(out)));
    });
    type.def("rope", [](Program& p, const std::string& name, std::int64_t x, std::int64_t rope, std::int64_t head_dim) {
        const Builder build{p};
        build.rope(name, rope, head_dim);
        require(head_dim > 0 && build.float_value(name, x).features % head_dim == 0, name, "heads must divide the features");
        p.add(make_rope(name, build.value(x), rope, head_dim));
    });
    type.def("write_kv", [](Program& p, const std::string& name, std::int64_t k, std::int64_t v, std::int64_t layer, const AttentionShape& shape) {
        const Builder build{p};
        build.layer(name, layer, shape);
        build.same_features(name, build.float_value(name, k), build.float_value(name, v));
        require(build.value(k).features == shape.num_kv_heads * shape.head_dim, name, "k has another number of features than the kv heads");
        p.add(make_write_kv(name, build.value(k), build.value(v), layer, shape));
    });
    type.def("gated", [](Program& p, const std::string& name, std::int64_t gate, std::int64_t up, const std::string& activation, std::int64_t out) {
        const Builder build{p};
        build.same_features(name, build.float_value(name, gate), build.float_value(name, up));
        build.same_features(name, build.value(gate), build.value(out));
        p.need_inputs(build.value(gate).features);
        p.add(make_gated(name, build.value(gate), build.value(up), activation_named(activation), build.value(out)));
    });
    type.def("add", [](Program& p, const std::string& name, std::int64_t x, std::int64_t y, std::int64_t out) {
        const Builder build{p};
        build.same_features(name, build.float_value(name, x), build.float_value(name, y));
        build.same_features(name, build.value(x), build.float_value(name, out));
        p.add(make_add(name, build.value(x), build.value(y), build.value(out)));
    });
    type.def("gather", [](Program& p, const std::string& name, std::int64_t x, std::int64_t out) {
        const Builder build{p};
        build.same_features(name, build.float_value(name, x), build.float_value(name, out));
        require(build.value(x).domain == Domain::tokens && build.value(out).domain == Domain::logits, name, "it goes from tokens to logits");
        p.add(make_gather(name, build.value(x), build.value(out)));
    });
    type.def("copy", [](Program& p, const std::string& name, std::int64_t x, std::int64_t out) {
        const Builder build{p};
        build.same_features(name, build.float_value(name, x), build.float_value(name, out));
        require(build.value(x).domain == build.value(out).domain, name, "both have the same rows");
        p.add(make_copy(name, build.value(x), build.value(out)));
    });
    type.def("linear", &add_linear, nb::arg("name"), nb::arg("x"), nb::arg("matrices"), nb::arg("biases"), nb::arg("outs"));
    type.def("linear_add", &add_linear_add, nb::arg("name"), nb::arg("x"), nb::arg("matrix"), nb::arg("bias").none(), nb::arg("residual"));
    type.def("linear_gated", &add_linear_gated, nb::arg("name"), nb::arg("x"), nb::arg("gate"), nb::arg("gate_bias").none(), nb::arg("up"),
             nb::arg("up_bias").none(), nb::arg("activation"), nb::arg("out"));
    type.def("project_qkv", &add_project_qkv, nb::arg("name"), nb::arg("x"), nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("q_bias").none(),
             nb::arg("k_bias").none(), nb::arg("v_bias").none(), nb::arg("q_norm").none(), nb::arg("k_norm").none(), nb::arg("eps"), nb::arg("rope"),
             nb::arg("layer"), nb::arg("shape"), nb::arg("q_out"));
    type.def("attend", &add_attend, nb::arg("name"), nb::arg("q"), nb::arg("layer"), nb::arg("shape"), nb::arg("out"));
    type.def("experts", &add_experts, nb::arg("name"), nb::arg("x"), nb::arg("router"), nb::arg("mlps"), nb::arg("experts_per_token"),
             nb::arg("renormalize"), nb::arg("activation"), nb::arg("routed_x"), nb::arg("routed_hidden"), nb::arg("routed_y"), nb::arg("out"));
    type.def("logits", &add_logits, nb::arg("name"), nb::arg("x"), nb::arg("matrix"), nb::arg("bias").none(), nb::arg("softcap"));
}

void run_step(Program& program, std::vector<std::int32_t> tokens, const Chunks& chunks, std::vector<std::int32_t> logit_rows,
              const LogitsArray& logits) {
    if (logits.shape(0) != logit_rows.size()) throw std::invalid_argument("logits must have one row for each of logit_rows");
    std::vector<ChunkSpec> specs;
    for (const auto& [sequence_id, start, length] : chunks) specs.push_back({sequence_id, start, length});
    const nb::gil_scoped_release unlocked;
    program.run(std::move(tokens), specs, std::move(logit_rows), logits.data(), static_cast<std::int64_t>(logits.shape(1)));
}

nb::list describe_instructions(const Program& program) {
    nb::list rows;
    for (const auto& instruction : program.instructions()) {
        nb::dict row;
        row["name"] = instruction->name();
        row["kind"] = instruction->kind();
        row["weights"] = instruction->weights();
        rows.append(row);
    }
    return rows;
}

std::vector<std::pair<double, double>> instruction_costs(const Program& program, std::int64_t rows, std::int64_t context,
                                                         std::int64_t logit_rows) {
    std::vector<std::pair<double, double>> costs;
    for (const auto& instruction : program.instructions()) {
        const Cost cost = instruction->cost(program.context(), {rows, context, logit_rows});
        costs.emplace_back(cost.num_bytes, cost.num_operations);
    }
    return costs;
}

void bind_values(nb::class_<Program>& type) {
    type.def("slot", [](Program& p, std::int64_t bytes_per_row, const std::string& domain) {
        return p.values().add_slot(bytes_per_row, domain_named(domain));
    }, nb::arg("bytes_per_row"), nb::arg("domain") = "tokens");
    type.def("float_rows", [](Program& p, std::int64_t slot, std::int64_t features) { return p.values().add({slot, features, 0}); });
    type.def("quantized_rows", [](Program& p, std::int64_t slot, std::int64_t features, std::int64_t group) {
        if (group < 1) throw std::invalid_argument("a group has at least one feature");
        return p.values().add({slot, features, group});
    });
    type.def_static("float_row_bytes", &Values::float_row_bytes);
    type.def_static("quantized_row_bytes", &Values::quantized_row_bytes);
    type.def("rope_table", [](Program& p, std::int64_t half) { return p.ropes().add(half); });
    type.def("set_rope_table", [](Program& p, std::int64_t rope, const Table& cos, const Table& sin) {
        const auto half = static_cast<std::size_t>(p.ropes().half(rope));
        if (cos.shape(1) != half || sin.shape(1) != half || cos.shape(0) != sin.shape(0)) {
            throw std::invalid_argument("cos and sin must both be [positions, half]");
        }
        p.ropes().set(rope, cos.data(), sin.data(), static_cast<std::int64_t>(cos.shape(0)));
    });
}

void bind_running(nb::class_<Program>& type) {
    type.def("set_block_table", &Program::set_block_table);
    type.def("forget", &Program::forget);
    type.def("run", &run_step, nb::arg("tokens"), nb::arg("chunks"), nb::arg("logit_rows"), nb::arg("logits").noconvert());
    type.def("profile", [](Program& p, std::vector<std::int32_t> tokens, const Chunks& chunks, std::vector<std::int32_t> logit_rows,
                           const LogitsArray& logits) {
        p.set_timed(true);
        run_step(p, std::move(tokens), chunks, std::move(logit_rows), logits);
        p.set_timed(false);
        return p.seconds();
    }, nb::arg("tokens"), nb::arg("chunks"), nb::arg("logit_rows"), nb::arg("logits").noconvert());
    type.def("instructions", &describe_instructions);
    type.def("costs", &instruction_costs, nb::arg("num_rows"), nb::arg("context"), nb::arg("num_logit_rows"));
    type.def_prop_ro("scratch_bytes", &Program::scratch_bytes);
}

}  // namespace
}  // namespace octavo

void bind_program(nb::module_& module) {
    using namespace octavo;
    nb::class_<ThreadTeam>(module, "ThreadTeam")
        .def(nb::init<int>(), nb::arg("num_threads"))
        .def_prop_ro("num_threads", &ThreadTeam::num_threads);
    module.def("available_threads", &available_threads, "Threads worth having here: affinity, cut by the cgroup's quota.");
    nb::class_<AttentionShape>(module, "AttentionShape")
        .def("__init__", [](AttentionShape* shape, std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim, float scale,
                            float softcap, std::int64_t window) {
            new (shape) AttentionShape{heads, kv_heads, head_dim, scale, softcap, window};
        }, nb::arg("num_heads"), nb::arg("num_kv_heads"), nb::arg("head_dim"), nb::arg("scale"), nb::arg("softcap") = 0.0f, nb::arg("window") = 0);
    nb::class_<KvStore>(module, "KvStore")
        .def("__init__", [](KvStore* store, const KvStore::Layers& layers, std::int64_t num_blocks, std::int64_t block_size, const std::string& format) {
            new (store) KvStore(layers, num_blocks, block_size, kv_format_named(format));
        }, nb::arg("layers"), nb::arg("num_blocks"), nb::arg("block_size"), nb::arg("format"))
        .def_prop_ro("num_bytes", &KvStore::num_bytes)
        .def("copy_block", &KvStore::copy_block, nb::arg("source"), nb::arg("target"))
        .def_static("bytes_per_block", [](const KvStore::Layers& layers, std::int64_t block_size, const std::string& format) {
            return KvStore::bytes_per_block(layers, block_size, kv_format_named(format));
        }, nb::arg("layers"), nb::arg("block_size"), nb::arg("format"));
    nb::class_<Program> program(module, "Program");
    program.def("__init__", [](Program* p, std::shared_ptr<ThreadTeam> team, const std::string& unit, std::shared_ptr<KvStore> kv,
                               std::int64_t max_rows, std::int64_t max_logit_rows, std::int64_t experts_per_token) {
        const KernelUnit& chosen = unit.empty() ? best_unit() : unit_named(unit);
        new (p) Program(std::move(team), *chosen.kernels, std::move(kv), max_rows, max_logit_rows, experts_per_token);
    }, nb::arg("team"), nb::arg("unit"), nb::arg("kv"), nb::arg("max_rows"), nb::arg("max_logit_rows"),
       nb::arg("experts_per_token") = 0);
    bind_values(program);
    bind_instructions(program);
    bind_running(program);
    module.def("measure_bandwidth", &measure_bandwidth, nb::arg("team"), nb::arg("num_bytes"), nb::call_guard<nb::gil_scoped_release>(),
               "Bytes read a second by all threads of the team.");
    module.def("measure_dot_rate", [](ThreadTeam& team, const std::string& unit) {
        const KernelUnit& chosen = unit.empty() ? best_unit() : unit_named(unit);
        const nb::gil_scoped_release unlocked;
        return measure_dot_rate(team, *chosen.kernels);
    }, nb::arg("team"), nb::arg("unit"), "int8 operations a second (two a multiply-add) of the many-row linear, from cache.");
}
