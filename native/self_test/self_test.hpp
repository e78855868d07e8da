// Whether a unit gives the portable unit's bits on this machine: asked once, before the unit is used.
//
// What the processor says it can do is not proof: a hypervisor may hide the operating system's refusal, an emulator may
// lack an instruction, a compiler may have dropped a store. So a unit first solves a few small problems.
#pragma once

#include <cstdint>
#include <string>

#include "self_test/cases.hpp"

namespace octavo {

// A hash of all answers of `kernels`, unguarded: the same on every architecture.
std::uint64_t answers_digest(const Kernels& kernels, const KernelCases& cases);

// "" if `unit` answers every case with the bits of `portable`, otherwise what went wrong, for people. An instruction
// that the processor refuses, or an access that the system does, ends the test and not the process.
std::string self_test(const Kernels& unit, const Kernels& portable, const KernelCases& cases);

}  // namespace octavo
