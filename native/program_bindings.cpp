// The step program in Python: octavo.ops.native uses it through `_kernels.Program` and its companions.
#include "program_bindings.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <stdexcept>
#include <tuple>

#include "program/measure.hpp"

namespace nb = nanobind;

namespace octavo {
namespace {

using Table = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using LogitsArray = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Chunks = std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t>>;

Domain domain_named(const std::string& name) {
    if (name == "tokens") return Domain::tokens;
    if (name == "logits") return Domain::logits;
    if (name == "routed") return Domain::routed;
    throw std::invalid_argument("domain '" + name + "' is not one of tokens, logits, routed");
}

ScaleSource scale_source_named(const std::string& name) {
    if (name == "group") return ScaleSource::group;
    if (name == "row") return ScaleSource::row;
    if (name == "fixed") return ScaleSource::fixed;
    throw std::invalid_argument("scale source '" + name + "' is not one of group, row, fixed");
}

Grid fp8_grid_named(const std::string& name) {
    if (name == "fp8 e4m3") return Grid::e4m3;
    if (name == "mxfp8") return Grid::mxfp8;
    throw std::invalid_argument("grid '" + name + "' is not one of fp8 e4m3, mxfp8");
}

// A calibrated scale must be a normal number, or there must be none.
float checked_scale(const std::string& source, float scale) {
    if (source == "fixed" ? std::isnormal(scale) && scale > 0 : scale == 0.0f) return scale;
    throw std::invalid_argument("scale " + std::to_string(scale) + ": a fixed one must be positive, others 0");
}

void run_step(Program& program, std::vector<std::int32_t> tokens, const Chunks& chunks,
              std::vector<std::int32_t> logit_rows, const LogitsArray& logits) {
    if (logits.shape(0) != logit_rows.size())
        throw std::invalid_argument("logits must have one row for each of logit_rows");
    std::vector<ChunkSpec> specs;
    for (const auto& [sequence_id, start, length] : chunks) specs.push_back({sequence_id, start, length});
    const nb::gil_scoped_release unlocked;
    program.run(std::move(tokens), specs, std::move(logit_rows), logits.data(),
                static_cast<std::int64_t>(logits.shape(1)));
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

std::vector<std::pair<double, double>> instruction_costs(const Program& program, std::int64_t rows,
                                                         std::int64_t context, std::int64_t logit_rows,
                                                         std::int64_t sequences) {
    if (sequences < 1 || rows % sequences != 0) throw std::invalid_argument("num_sequences must divide num_rows");
    std::vector<std::pair<double, double>> costs;
    for (const auto& instruction : program.instructions()) {
        const Cost cost = instruction->cost(program.context(), {rows, context, logit_rows, sequences});
        costs.emplace_back(cost.num_bytes, cost.num_operations);
    }
    return costs;
}

void bind_values(nb::class_<Program>& type) {
    type.def(
        "slot",
        [](Program& p, std::int64_t bytes_per_row, const std::string& domain) {
            return p.values().add_slot(bytes_per_row, domain_named(domain));
        },
        nb::arg("bytes_per_row"), nb::arg("domain") = "tokens");
    type.def("float_rows", [](Program& p, std::int64_t slot, std::int64_t features) {
        return p.values().add({slot, features, {}, Domain::tokens});
    });
    type.def(
        "quantized_rows",
        [](Program& p, std::int64_t slot, std::int64_t features, std::int64_t group, const std::string& source,
           float scale) {
            if (group < 1) throw std::invalid_argument("a group has at least one feature");
            const Form form{Grid::int8, group, scale_source_named(source), checked_scale(source, scale)};
            return p.values().add({slot, features, form, Domain::tokens});
        },
        nb::arg("slot"), nb::arg("features"), nb::arg("group"), nb::arg("source") = "group", nb::arg("scale") = 0.0f,
        "int8 rows; the scale is each group's own, each row's own (source row) or `scale` (source fixed).");
    type.def(
        "fp8_rows",
        [](Program& p, std::int64_t slot, std::int64_t features, const std::string& grid, std::int64_t group,
           const std::string& source, float scale) {
            const Form form{fp8_grid_named(grid), group, scale_source_named(source), checked_scale(source, scale)};
            if ((form.source == ScaleSource::group) != (group > 0)) {
                throw std::invalid_argument(
                    "groups have scales of their own; rows without groups have one, or a fixed one");
            }
            return p.values().add({slot, features, form, Domain::tokens});
        },
        nb::arg("slot"), nb::arg("features"), nb::arg("grid"), nb::arg("group"), nb::arg("source"), nb::arg("scale"),
        "float32 rows on the grid of fp8 e4m3 or mxfp8.");
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
    type.def("run", &run_step, nb::arg("tokens"), nb::arg("chunks"), nb::arg("logit_rows"),
             nb::arg("logits").noconvert());
    type.def(
        "profile",
        [](Program& p, std::vector<std::int32_t> tokens, const Chunks& chunks, std::vector<std::int32_t> logit_rows,
           const LogitsArray& logits) {
            p.set_timed(true);
            run_step(p, std::move(tokens), chunks, std::move(logit_rows), logits);
            p.set_timed(false);
            return p.seconds();
        },
        nb::arg("tokens"), nb::arg("chunks"), nb::arg("logit_rows"), nb::arg("logits").noconvert());
    type.def("instructions", &describe_instructions);
    type.def("costs", &instruction_costs, nb::arg("num_rows"), nb::arg("context"), nb::arg("num_logit_rows"),
             nb::arg("num_sequences"));
    type.def_prop_ro("scratch_bytes", &Program::scratch_bytes);
}

}  // namespace
}  // namespace octavo

namespace octavo {
namespace {

// Counts how often its tasks run; the longest phase has `num_tasks`, every third one none.
class CountingJob final : public Job {
public:
    CountingJob(std::int64_t num_phases, std::int64_t num_tasks) : num_phases_(num_phases), num_tasks_(num_tasks) {}
    std::int64_t num_phases() const override { return num_phases_; }
    std::int64_t num_tasks(std::int64_t phase) const override { return phase % 3 == 2 ? 0 : num_tasks_ - phase % 2; }
    void run_task(std::int64_t, std::int64_t, int) override { num_run.fetch_add(1, std::memory_order_relaxed); }
    std::int64_t num_wanted() const {
        std::int64_t wanted = 0;
        for (std::int64_t phase = 0; phase < num_phases_; ++phase) wanted += num_tasks(phase);
        return wanted;
    }
    std::atomic<std::int64_t> num_run{0};

private:
    std::int64_t num_phases_, num_tasks_;
};

// Runs jobs of 1, 2, ... `most_phases` phases in turn. Returns the first whose tasks had not all run once when `run`
// returned, or -1.
std::int64_t first_bad_job(ThreadTeam& team, std::int64_t num_jobs, std::int64_t most_phases, std::int64_t num_tasks) {
    for (std::int64_t number = 0; number < num_jobs; ++number) {
        CountingJob job(1 + number % most_phases, num_tasks);
        team.run(job);
        if (job.num_run.load() != job.num_wanted()) return number;
    }
    return -1;
}

void bind_kv_store(nb::module_& module) {
    nb::class_<KvStore>(module, "KvStore")
        .def(
            "__init__",
            [](KvStore* store, const KvStore::Layers& layers, std::int64_t num_blocks, std::int64_t block_size,
               const std::string& format, const KvStore::HeadScales& scales) {
                new (store) KvStore(layers, num_blocks, block_size, kv_format_named(format), scales);
            },
            nb::arg("layers"), nb::arg("num_blocks"), nb::arg("block_size"), nb::arg("format"),
            nb::arg("scales") = KvStore::HeadScales{})
        .def_prop_ro("num_bytes", &KvStore::num_bytes)
        .def("copy_block", &KvStore::copy_block, nb::arg("source"), nb::arg("target"))
        .def_static(
            "bytes_per_block",
            [](const KvStore::Layers& layers, std::int64_t block_size, const std::string& format) {
                return KvStore::bytes_per_block(layers, block_size, kv_format_named(format));
            },
            nb::arg("layers"), nb::arg("block_size"), nb::arg("format"));
}

}  // namespace
}  // namespace octavo

void bind_program(nb::module_& module) {
    using namespace octavo;
    nb::class_<ThreadTeam>(module, "ThreadTeam")
        .def(nb::init<int>(), nb::arg("num_threads"))
        .def_prop_ro("num_threads", &ThreadTeam::num_threads)
        .def("first_bad_job", &first_bad_job, nb::arg("num_jobs"), nb::arg("most_phases"), nb::arg("num_tasks"),
             nb::call_guard<nb::gil_scoped_release>(),
             "For tests: the first job whose tasks did not all run once, or -1.");
    module.def("available_threads", &available_threads,
               "Threads worth having here: affinity, cut by the cgroup's quota.");
    nb::class_<AttentionShape>(module, "AttentionShape")
        .def(
            "__init__",
            [](AttentionShape* shape, std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim, float scale,
               float softcap,
               std::int64_t window) { new (shape) AttentionShape{heads, kv_heads, head_dim, scale, softcap, window}; },
            nb::arg("num_heads"), nb::arg("num_kv_heads"), nb::arg("head_dim"), nb::arg("scale"),
            nb::arg("softcap") = 0.0f, nb::arg("window") = 0);
    bind_kv_store(module);
    nb::class_<Program> program(module, "Program");
    program.def(
        "__init__",
        [](Program* p, std::shared_ptr<ThreadTeam> team, const std::string& unit, std::shared_ptr<KvStore> kv,
           std::int64_t max_rows, std::int64_t max_logit_rows, std::int64_t experts_per_token) {
            const KernelUnit& chosen = unit.empty() ? best_unit() : unit_named(unit);
            new (p)
                Program(std::move(team), *chosen.kernels, std::move(kv), max_rows, max_logit_rows, experts_per_token);
        },
        nb::arg("team"), nb::arg("unit"), nb::arg("kv"), nb::arg("max_rows"), nb::arg("max_logit_rows"),
        nb::arg("experts_per_token") = 0);
    bind_values(program);
    bind_instructions(program);
    bind_running(program);
    module.def("measure_bandwidth", &measure_bandwidth, nb::arg("team"), nb::arg("num_bytes"),
               nb::call_guard<nb::gil_scoped_release>(), "Bytes read a second by all threads of the team.");
    module.def(
        "measure_dot_rate",
        [](ThreadTeam& team, const std::string& unit) {
            const KernelUnit& chosen = unit.empty() ? best_unit() : unit_named(unit);
            const nb::gil_scoped_release unlocked;
            return measure_dot_rate(team, *chosen.kernels);
        },
        nb::arg("team"), nb::arg("unit"),
        "int8 operations a second (two a multiply-add) of the many-row linear, from cache.");
}
