// What the machine can do: the two roofs of the roofline (Williams, Waterman, Patterson 2009).
#pragma once

#include <cstdint>

#include "kernels/kernels.hpp"
#include "program/thread_team.hpp"

namespace octavo {

// Bytes a second that the team reads from a buffer of `num_bytes`; the best of several passes.
double measure_bandwidth(ThreadTeam& team, std::int64_t num_bytes);

// Operations a second (a multiplication and an addition are two) of the packed linear kernel with 4-bit weights and many
// rows, everything in cache; the best of several passes.
double measure_dot_rate(ThreadTeam& team, const Kernels& kernels);

}  // namespace octavo
