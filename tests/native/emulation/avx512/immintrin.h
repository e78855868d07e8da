// Found before the compiler's own <immintrin.h>: AVX-512 and AMX intrinsics become functions that any x86-64 with AVX2
// runs. SIMDe (https://github.com/simd-everywhere/simde, Debian: libsimde-dev) gives most of AVX-512.
#pragma once

#include_next <immintrin.h>

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>

#include "amx.h"
#include "avx512_missing.h"
