# Included right after llama-cpp-python's project(): leave out llama.cpp's `common` library (chat templates, argument
# parsing). Nothing here uses it, and it is more than half of the build. The sdist forces the cache entry on; a normal
# variable stands before it (policies CMP0126 and CMP0077).
set(LLAMA_BUILD_COMMON OFF)
