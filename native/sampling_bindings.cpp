// Sampling as Python sees it: one object for each sequence, one call for all rows of a step.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <utility>
#include <vector>

#include "sampling/logprobs.hpp"
#include "sampling/sequence_sampler.hpp"
#include "sampling/uniform.hpp"

namespace nb = nanobind;

namespace {

using octavo::SequenceSampler;
using Logits = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Row = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ConstRow = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

octavo::SamplingScratch& thread_scratch() {
    thread_local octavo::SamplingScratch scratch;
    return scratch;
}

std::vector<octavo::LogitBias> read_bias(const std::vector<std::pair<std::int64_t, float>>& pairs) {
    std::vector<octavo::LogitBias> bias;
    for (const auto& [token, value] : pairs) bias.push_back({token, value});
    return bias;
}

void make_sampler(SequenceSampler* self, double temperature, std::int64_t top_k, double top_p, double min_p,
                  float repetition, float presence, float frequency, std::uint64_t seed, std::uint64_t sequence_index,
                  const std::vector<std::int64_t>& prompt, const std::vector<std::pair<std::int64_t, float>>& bias,
                  std::vector<std::int64_t> banned, std::int64_t min_tokens) {
    octavo::LogitAdjustment adjustment({repetition, presence, frequency}, prompt, read_bias(bias), std::move(banned),
                                       min_tokens);
    new (self) SequenceSampler({temperature, top_k, top_p, min_p}, seed, sequence_index, std::move(adjustment));
}

void check_tokens(const SequenceSampler& sampler, std::size_t num_tokens) {
    if (sampler.adjustment().highest_token() >= static_cast<std::int64_t>(num_tokens)) {
        throw std::invalid_argument("a token id of a bias, ban or penalty is outside the row");
    }
}

std::int64_t check_row(const Logits& logits, std::int64_t row) {
    if (row < 0 || row >= static_cast<std::int64_t>(logits.shape(0))) throw std::out_of_range("row outside logits");
    return row;
}

struct WantedRow {
    const SequenceSampler* sampler;
    std::int64_t row, token;
};

nb::list sample_rows(Logits logits, nb::list rows, nb::list samplers, const std::string& unit) {
    if (rows.size() != samplers.size()) throw std::invalid_argument("one sampler for each row");
    if (logits.shape(1) == 0) throw std::invalid_argument("rows must have tokens");
    std::vector<WantedRow> wanted;
    wanted.reserve(rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const auto* sampler = nb::cast<const SequenceSampler*>(samplers[i]);
        check_tokens(*sampler, logits.shape(1));
        wanted.push_back({sampler, check_row(logits, nb::cast<std::int64_t>(rows[i])), 0});
    }
    const octavo::RowKernels& kernels = octavo::row_kernels_named(unit);
    const auto num_tokens = static_cast<std::int64_t>(logits.shape(1));
    {
        nb::gil_scoped_release unlocked;
        for (WantedRow& each : wanted) {
            const float* row = logits.data() + each.row * num_tokens;
            each.token = each.sampler->sample(row, num_tokens, kernels, thread_scratch());
        }
    }
    nb::list tokens;
    for (const WantedRow& each : wanted) tokens.append(each.token);
    return tokens;
}

nb::list row_logprobs(Logits logits, const std::vector<std::int64_t>& rows, const std::vector<std::int64_t>& chosen,
                      const std::vector<std::int64_t>& counts, const std::string& unit) {
    if (rows.size() != chosen.size() || rows.size() != counts.size()) {
        throw std::invalid_argument("one chosen token and one count for each row");
    }
    const octavo::RowKernels& kernels = octavo::row_kernels_named(unit);
    const auto num_tokens = static_cast<std::int64_t>(logits.shape(1));
    nb::list found;
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const float* row = logits.data() + check_row(logits, rows[i]) * num_tokens;
        if (chosen[i] < 0 || chosen[i] >= num_tokens) throw std::out_of_range("chosen token outside the row");
        nb::list entries;
        for (const octavo::TokenLogprob& each :
             octavo::row_logprobs(row, num_tokens, chosen[i], counts[i], kernels, thread_scratch())) {
            entries.append(nb::make_tuple(each.token, each.logprob, each.rank));
        }
        found.append(entries);
    }
    return found;
}

// (token ids, weights) of all that is left to draw from, for tests and tools: weights are relative to the highest one.
nb::tuple list_candidates(const SequenceSampler& sampler, ConstRow row, const std::string& unit) {
    check_tokens(sampler, row.shape(0));
    const octavo::RowKernels& kernels = octavo::row_kernels_named(unit);
    octavo::SamplingScratch& scratch = thread_scratch();
    const auto num_tokens = static_cast<std::int64_t>(row.shape(0));
    const octavo::RowScan scan = octavo::scan_row(kernels, row.data(), num_tokens, scratch.maxima);
    nb::list tokens, weights;
    if (sampler.truncate(scan, kernels, scratch)) {
        for (const octavo::Candidate& each : scratch.candidates) {
            tokens.append(each.token);
            weights.append(each.weight);
        }
    } else {
        for (std::size_t token = 0; token < row.shape(0); ++token) {
            tokens.append(token);
            weights.append(scratch.weights[token]);
        }
    }
    return nb::make_tuple(tokens, weights);
}

void adjust(const SequenceSampler& sampler, Row row) {
    check_tokens(sampler, row.shape(0));
    if (sampler.adjustment().applies()) sampler.adjustment().apply(row.data());
}

nb::list list_units() {
    nb::list units;
    for (const octavo::RowKernels& unit : octavo::row_kernels()) {
        if (unit.available) units.append(unit.name);
    }
    return units;
}

}  // namespace

void bind_sampling(nb::module_& module) {
    nb::class_<SequenceSampler>(module, "SequenceSampler")
        .def("__init__", &make_sampler, nb::kw_only(), nb::arg("temperature"), nb::arg("top_k"), nb::arg("top_p"),
             nb::arg("min_p"), nb::arg("repetition_penalty"), nb::arg("presence_penalty"), nb::arg("frequency_penalty"),
             nb::arg("seed"), nb::arg("sequence_index"), nb::arg("prompt"), nb::arg("bias"), nb::arg("banned"),
             nb::arg("min_tokens"))
        .def("append", &SequenceSampler::append, nb::arg("token"))
        .def_prop_ro("num_output_tokens", &SequenceSampler::num_output_tokens)
        .def("adjust", &adjust, nb::arg("row").noconvert(), "Bias, bans and penalties on a row, in place.")
        .def("candidates", &list_candidates, nb::arg("row").noconvert(), nb::arg("unit") = "");
    module.def("sample_rows", &sample_rows, nb::arg("logits").noconvert(), nb::arg("rows"), nb::arg("samplers"),
               nb::arg("unit") = "", "One token for each row; -1 where the row is not finite.");
    module.def("row_logprobs", &row_logprobs, nb::arg("logits").noconvert(), nb::arg("rows"), nb::arg("chosen"),
               nb::arg("counts"), nb::arg("unit") = "",
               "[(token, logprob, rank), ...] for each row, the chosen first.");
    module.def("uniform", &octavo::uniform, nb::arg("seed"), nb::arg("sequence_index"), nb::arg("position"));
    module.def("sampling_units", &list_units, "Units of the sampling kernels that run here, slowest first.");
}
