# Sampling: plain sources, and one unit for each instruction set.
target_sources(octavo_native PRIVATE
  native/sampling/candidates.cpp
  native/sampling/logit_adjustment.cpp
  native/sampling/logprobs.cpp
  native/sampling/row_kernels.cpp
  native/sampling/row_kernels_portable.cpp
  native/sampling/sequence_sampler.cpp)
target_include_directories(octavo_native PUBLIC native)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64)$")
  target_sources(octavo_native PRIVATE
    native/sampling/row_kernels_avx2.cpp
    native/sampling/row_kernels_avx512.cpp)
  set_source_files_properties(native/sampling/row_kernels_avx2.cpp PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c")
  # gcc 12 takes the undefined registers in its own AVX-512 header for uninitialized variables.
  set_source_files_properties(native/sampling/row_kernels_avx512.cpp PROPERTIES
    COMPILE_OPTIONS "-mavx512f;-Wno-maybe-uninitialized")
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64|ARM64)$")
  target_sources(octavo_native PRIVATE native/sampling/row_kernels_neon.cpp)
  target_compile_definitions(octavo_native PRIVATE OCTAVO_ARM_UNITS)
endif()
