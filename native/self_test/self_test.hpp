// Whether a unit gives the portable unit's bits on this machine: asked once, before the unit is used.
//
// What the processor says it can do is not proof: a hypervisor may hide the operating system's refusal, an emulator may
// lack an instruction, a compiler may have dropped a store. So a unit first solves a few small problems.
#pragma once

#include <string>
#include <vector>

#include "self_test/cases.hpp"

namespace octavo {

// What `kernels` answer, unguarded.
std::vector<float> answer_of(KernelCase& problem, const Kernels& kernels);

// "" if `unit` answers every case with the bits of `portable`, otherwise what went wrong, for people. An instruction that
// the processor refuses, or an access that the system does, ends the test and not the process.
std::string self_test(const Kernels& unit, const Kernels& portable, const KernelCases& cases);

}  // namespace octavo
