// What the two files of the program's bindings share.
#pragma once

#include <nanobind/nanobind.h>

#include "program/program.hpp"

namespace octavo {

// One method for each instruction. Arguments are checked there, so that a step needs no checks.
void bind_instructions(nanobind::class_<Program>& type);

}  // namespace octavo
