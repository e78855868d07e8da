// Symmetric int8 quantization of activations, one scale for each row and group.
//
// A row-major matrix whose groups divide its rows is just a run of groups, so the kernels see groups only:
//
//     x       float32 [num_groups, group_size]
//     codes   int8    [num_groups, group_size]    round(x * (127 / absmax)), ties to even, in [-127, 127]
//     scales  float32 [num_groups]                absmax / 127
//
// A group whose scale would be subnormal (absmax below 1.5e-36, zero included) gets scale 0 and codes 0, so the
// result does not depend on the thread's flush-to-zero mode. Values are finite, or the kernel stops.
//
// Every unit gives the same bits as the portable one: maxima are exact, and the one division and the one
// multiplication per value are correctly rounded everywhere. That is why no unit may be built with -ffast-math or
// contract to FMA.
#pragma once

#include <cstdint>

namespace octavo {

// Returns the index of the first group that holds NaN or infinity (outputs from there on are not written), or -1.
using QuantizeActivations = std::int64_t (*)(const float* x, std::int64_t num_groups, std::int64_t group_size,
                                             std::int8_t* codes, float* scales);

std::int64_t quantize_activations_portable(const float*, std::int64_t, std::int64_t, std::int8_t*, float*);
std::int64_t quantize_activations_avx2(const float*, std::int64_t, std::int64_t, std::int8_t*, float*);
std::int64_t quantize_activations_avx512(const float*, std::int64_t, std::int64_t, std::int8_t*, float*);

}  // namespace octavo
