// Which cases there are.
#include "self_test/cases.hpp"

namespace octavo {
namespace {

constexpr std::int64_t kWholeRow = 1 << 20;
constexpr ScaleFormat kScaleFormats[] = {ScaleFormat::f16, ScaleFormat::bf16, ScaleFormat::f32};

// Every width, symmetric and not, few rows and many; groups of half an octet, of one, that AMX takes in one product or in
// several, and that are a whole row with a tail.
void add_packed(KernelCases& cases) {
    const std::int64_t groups[][3] = {{16, 1, 80},   {32, 2, 172},        {32, 1, 200},
                                      {64, 1, 576},  {64, 2, 320},        {128, 1, 576},
                                      {192, 1, 576}, {kWholeRow, 1, 172}, {kWholeRow, 1, 448}};
    int turn = 0;
    for (const int bits : {2, 3, 4, 8}) {
        for (const bool has_zeros : {false, true}) {
            for (const auto& [group, per_scale, inputs] : groups) {
                for (const std::int64_t rows : {1, 3, 7, 9, 16, 37}) {
                    const ScaleFormat format = kScaleFormats[turn++ % 3];
                    const std::int64_t outputs = rows == 7 ? 10 : rows == 37 ? 70 : 48;
                    cases.push_back(packed_case({bits, has_zeros, format, group, per_scale, outputs, inputs, rows}));
                }
            }
        }
    }
    const std::int64_t fp4_groups[][2] = {{16, 80}, {32, 192}, {64, 576}, {kWholeRow, 172}};
    for (const auto& [group, inputs] : fp4_groups) {
        for (const std::int64_t rows : {1, 3, 9, 37}) {
            const ScaleFormat format = kScaleFormats[turn++ % 3];
            cases.push_back(packed_case({kFp4, false, format, group, 1, rows == 37 ? 70 : 48, inputs, rows, 0.37f}));
        }
    }
    // So many rows, or so long ones, that kernels cut them into blocks.
    cases.push_back(packed_case({8, false, ScaleFormat::f32, kWholeRow, 1, 32, 448, 100}));
    cases.push_back(packed_case({8, true, ScaleFormat::f16, kWholeRow, 1, 16, 448, 130}));
    cases.push_back(packed_case({4, true, ScaleFormat::bf16, 64, 1, 16, kCaseMostInputs, 80}));
}

void add_dense(KernelCases& cases) {
    for (const DenseFormat format : {DenseFormat::f32, DenseFormat::bf16, DenseFormat::f16}) {
        for (const std::int64_t rows : {1, 2, 5, 8, 13, 33}) {
            cases.push_back(dense_case({format, 70, 64, rows}));
            cases.push_back(dense_case({format, 144, 37, rows}));
        }
    }
    const std::int64_t groups[][2] = {{32, 96}, {128, 576}, {kWholeRow, 37}, {kWholeRow, 300}};
    for (const DenseFormat format : {DenseFormat::e4m3, DenseFormat::e5m2}) {
        for (const auto& [group, inputs] : groups) {
            for (const std::int64_t rows : {1, 2, 5, 13, 33})
                cases.push_back(dense_case({format, 70, inputs, rows, group}));
        }
    }
}

void add_attention(KernelCases& cases) {
    for (const KvFormat format :
         {KvFormat::f32, KvFormat::bf16, KvFormat::int8, KvFormat::int8_fixed, KvFormat::e4m3, KvFormat::e5m2}) {
        for (const std::int64_t head_dim : {8, 64, 80}) {
            cases.push_back(attention_case({format, 3, head_dim, 32, 100, 1, 0, 0.0f}));
            cases.push_back(attention_case({format, 1, head_dim, 16, 130, 19, 0, 0.0f}));
            cases.push_back(attention_case({format, 2, head_dim, 48, 200, 5, 70, 1.5f}));
        }
        cases.push_back(attention_case({format, 8, 128, 64, 300, 1, 0, 0.0f}));
        cases.push_back(attention_case({format, 4, 256, 16, 90, 3, 0, 2.0f}));
        cases.push_back(attention_case({format, 3, 64, 32, 1100, 2, 0, 0.0f}));
    }
}

}  // namespace

KernelCases quick_cases() {
    KernelCases cases;
    for (const int bits : {2, 3, 4, 8}) {
        cases.push_back(packed_case({bits, bits != 4, ScaleFormat::f16, 64, 1, 18, 128, 1}));
    }
    // Many rows, with a tail.
    cases.push_back(packed_case({4, false, ScaleFormat::bf16, 64, 1, 18, 128, 17}));
    cases.push_back(packed_case({8, true, ScaleFormat::f32, kWholeRow, 1, 16, 96, 17}));
    cases.push_back(dense_case({DenseFormat::bf16, 18, 20, 3}));
    cases.push_back(dense_case({DenseFormat::f16, 16, 20, 8}));
    cases.push_back(packed_case({kFp4, false, ScaleFormat::f16, 32, 1, 18, 64, 1, 0.37f}));
    cases.push_back(packed_case({kFp4, false, ScaleFormat::f32, 16, 1, 18, 64, 17, 0.37f}));
    cases.push_back(dense_case({DenseFormat::e4m3, 18, 64, 1, 32}));
    cases.push_back(dense_case({DenseFormat::e4m3, 16, 20, 8, kWholeRow}));
    cases.push_back(row_case(70));
    cases.push_back(attention_case({KvFormat::bf16, 2, 16, 16, 70, 1, 0, 0.0f}));
    cases.push_back(attention_case({KvFormat::int8, 1, 16, 16, 40, 7, 20, 1.5f}));
    cases.push_back(attention_case({KvFormat::e4m3, 1, 16, 16, 40, 2, 0, 0.0f}));
    return cases;
}

KernelCases thorough_cases() {
    KernelCases cases = quick_cases();
    add_packed(cases);
    add_dense(cases);
    for (const std::int64_t features : {2, 16, 64, 172, 300, 576}) cases.push_back(row_case(features));
    add_attention(cases);
    return cases;
}

}  // namespace octavo
